select
  subject as customer,
  count(*) as orders,
  cast(sum(cast(application_properties['amount'] as bigint)) as bigint) as amount
from west
group by subject
