"""Import this in a process of Spark: the SDK looks there as often as in the tests whether a link is open.

It looks some nine times for each link: for the credentials, the session, and each end of two links. Each query and each
task of Spark opens links of its own, so that half of the time of Spark's tests went by in these waits.
"""

from kits.prompt_sdk import prompt_modules

for _looking, _name, _module in prompt_modules():
    setattr(_looking, _name, _module)
