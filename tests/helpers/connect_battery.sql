-- empty
select * from t where id < 0;

-- one row
select 1 as a, 'x' as b, null as c;

-- values
select * from values (1, 'a'), (2, null) as v(n, s);

-- repeated names
select id, id + 1 as id, s as `a.b` from t;

-- no columns
select from_json('{}', 'a int') as a from t limit 3;

-- sums
select sum(tiny), sum(small), sum(i), sum(f), sum(price), sum(huge), avg(price), avg(d) from t where d < 10;

-- statistics
select stddev(i), corr(i, i), percentile(i, 0.5), approx_count_distinct(s) from t;

-- distinct
select count(distinct s), count(distinct d), sum(distinct tiny) from t;

-- rollup
select flag, tiny % 2 as p, count(*) as n, grouping_id() as g from t group by rollup(flag, tiny % 2);

-- having
select k, sum(v) as s from u group by k having sum(v) > 3500 order by k desc;

-- order and limit
select id, s from t order by s desc nulls last, id limit 7 offset 3;

-- inner join
select t.id, u.v, t.s from t join u on t.id = u.id where u.k < 4;

-- left join
select t.id, u.v from t left join u on t.id = u.v;

-- full join
select t.id, u.id as other from t full join u on t.id = u.id + 30;

-- semi join
select id, s from t where exists (select 1 from u where u.v = t.id);

-- anti join
select id from t where id not in (select v from u);

-- non-equi join
select t.id, u.id as other from t join u on t.id > u.id + 50;

-- scalar subquery
select id, (select max(v) from u where u.id = t.id) as m from t;

-- union
select id, s from t union all select id, cast(v as string) from u;

-- intersect
select id from t intersect select v from u;

-- except
select id from t except all select v from u;

-- with
with a as (select k, sum(v) as s from u group by k), b as (select max(s) as m from a) select a.k from a, b where a.s = b.m;

-- rank
select id, rank() over (partition by flag order by s) as r, row_number() over (order by id) as n from t;

-- running sum
select id, sum(v) over (partition by k order by id rows between 2 preceding and current row) as s from u;

-- lag
select id, lag(price, 2, 0.5) over (order by id) as l, ntile(7) over (order by id) as q from t;

-- explode
select id, item, pos from t lateral view posexplode(list) as pos, item;

-- explode map
select id, key, value from t lateral view outer explode(by_key) as key, value;

-- higher order
select id, transform(list, x -> x + id) as l, filter(list, x -> x is not null) as m, aggregate(list, 0, (a, x) -> a + coalesce(x, 0)) as n from t;

-- strings
select upper(s), reverse(s), length(s), substring(s, 2, 3), concat_ws('-', s, cast(id as string)), s like '%a%' as l, regexp_replace(s, '[a-z]', '.') as r from t;

-- dates
select date_add(day, i % 100) as a, datediff(day, date'2000-01-01') as b, date_trunc('month', at) as c, date_format(at, 'yyyy-MM-dd HH:mm') as d, year(day), weekofyear(day), last_day(day) from t;

-- times
select at + interval 3 hours as a, at - ntz as b, cast(at as string) as c, unix_timestamp(at) as d, to_utc_timestamp(at, 'Asia/Tokyo') as e, hour(at) from t;

-- casts
select cast(d as string) as a, cast(price as int) as b, cast(s as binary) as c, try_cast(s as int) as e, cast(flag as int) as f, cast(id as decimal(20, 5)) as g from t;

-- decimals
select price * price as a, huge / 3 as b, price % 7 as c, round(price, 1) as e, cast(price as decimal(5, 1)) as f from t where id < 50;

-- json
select to_json(pair) as a, to_json(by_key) as b, get_json_object('{"a": [1, 2]}', '$.a[1]') as c from t;

-- nested
select pair.z[0] as a, by_key['k'] as b, named_struct('p', pair, 'm', by_key) as c, array(pair, null) as d from t;

-- pivot
select * from (select id % 3 as k, flag, i from t) pivot (sum(i) as s for flag in (true as yes, false as no));

-- unpivot
select * from (select id, tiny, small from t) unpivot (v for n in (tiny, small));

-- table function
select * from range(3), explode(array('a', 'b')) as e(x);

-- sample
select id from t tablesample (10 rows);

-- time zone
select current_timezone() as z, timestamp'2024-03-10 03:30:00' as a, timestamp_ntz'2024-03-10 02:30:00' as b;

-- null of types
select cast(null as map<string, array<timestamp>>) as a, cast(null as interval day to second) as b, cast(null as decimal(3, 1)) as c;

-- intervals
select make_dt_interval(1, 2, 3, 4.5) as a, cast(make_ym_interval(1, id) as string) as b, span / 3 as c from t;

-- calendar interval
select cast(make_interval(1, 2, 3) as string) as i;

-- year-month interval
select make_ym_interval(1, 2) as i;

-- collation
select s collate unicode_ci as c, count(*) over () as n from t;

-- char
select cast('a' as char(3)) as c, cast('b' as varchar(5)) as v;

-- variant
select parse_json('{"a": 1}') as v, id from range(3);

-- not native
select input_file_name() as f, id from range(3);

-- group by all
select k, sum(v) as s from u group by all;

-- lateral alias
select id + 1 as a, a * 2 as b from range(5);

-- recursive
with recursive r(n) as (select 1 union all select n + 1 from r where n < 20) select n from r;

-- pipe
from u |> where k = 3 |> aggregate sum(v) as s group by k;

-- error: division
select 1 / (id - 5) as x from range(10);

-- error: cast
select cast(s as int) as x from t;

-- error: overflow
select cast(9223372036854775807 as bigint) + id as x from range(3);

-- error: array index
select list[10] as x from t;

-- error: column
select nothing from t;

-- error: table
select * from nothing;

-- error: syntax
selec 1;

-- error: raised
select if(id = 7, raise_error('seven'), id) as x from range(10);

-- error: subquery rows
select (select id from u) as x;

-- show tables
show views;

-- describe
describe t;

-- set
set spark.sql.session.timeZone;
