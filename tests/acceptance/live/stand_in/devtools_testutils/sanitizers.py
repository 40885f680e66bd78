"""Nothing is recorded, so nothing has to be taken out of recordings."""


def _nothing(**_kwargs):
    pass


add_general_regex_sanitizer = add_oauth_response_sanitizer = add_remove_header_sanitizer = _nothing
set_custom_default_matcher = _nothing
