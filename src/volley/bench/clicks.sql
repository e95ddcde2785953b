-- SPDX-License-Identifier: Apache-2.0
-- 43 queries over page views, separated by semicolons. Standard SQL where that is possible.

select count(*) from views;
select count(*) from views where ad_engine_id <> 0;
select sum(ad_engine_id), count(*), avg(screen_width) from views;
select avg(user_id) from views;
select count(distinct user_id) from views;
select count(distinct search_phrase) from views;
select min(event_date), max(event_date) from views;
select ad_engine_id, count(*) as views from views where ad_engine_id <> 0 group by ad_engine_id order by views desc, ad_engine_id;
select region_id, count(distinct user_id) as users from views group by region_id order by users desc, region_id limit 10;
select region_id, sum(ad_engine_id) as ads, count(*) as views, avg(screen_width) as width, count(distinct user_id) as users
from views group by region_id order by views desc, region_id limit 10;
select phone_model, count(distinct user_id) as users from views where phone_model <> '' group by phone_model order by users desc, phone_model limit 10;
select phone_kind, phone_model, count(distinct user_id) as users
from views where phone_model <> '' group by phone_kind, phone_model order by users desc, phone_kind, phone_model limit 10;
select search_phrase, count(*) as views from views where search_phrase <> '' group by search_phrase order by views desc, search_phrase limit 10;
select search_phrase, count(distinct user_id) as users from views where search_phrase <> '' group by search_phrase order by users desc, search_phrase limit 10;
select search_engine_id, search_phrase, count(*) as views
from views where search_phrase <> '' group by search_engine_id, search_phrase order by views desc, search_engine_id, search_phrase limit 10;
select user_id, count(*) as views from views group by user_id order by views desc, user_id limit 10;
select user_id, search_phrase, count(*) as views from views group by user_id, search_phrase order by views desc, user_id, search_phrase limit 10;
select sum(views) from (select user_id, search_phrase, count(*) as views from views group by user_id, search_phrase) counted;
select user_id, extract(minute from event_time) as minute, search_phrase, count(*) as views
from views group by user_id, extract(minute from event_time), search_phrase order by views desc, user_id, minute, search_phrase limit 10;
select user_id from views where user_id = 435090932899640449;
select count(*) from views where url like '%market%';
select search_phrase, min(url) as url, count(*) as views
from views where url like '%market%' and search_phrase <> '' group by search_phrase order by views desc, search_phrase limit 10;
select search_phrase, min(url) as url, min(title) as title, count(*) as views, count(distinct user_id) as users
from views where title like '%Weather%' and url not like '%.market.%' and search_phrase <> ''
group by search_phrase order by views desc, search_phrase limit 10;
select * from views where url like '%garden%' order by event_time, view_id limit 10;
select search_phrase, event_time from views where search_phrase <> '' order by event_time, search_phrase limit 10;
select search_phrase from views where search_phrase <> '' order by search_phrase limit 10;
select search_phrase, event_time from views where search_phrase <> '' order by event_time, search_phrase desc limit 10;
select site_id, avg(length(url)) as url_length, count(*) as views from views where url <> '' group by site_id having count(*) > 1000 order by url_length desc, site_id limit 25;
select regexp_replace(referrer, '^https?://(www[.])?([^/]+)/.*$', 'host') as host, avg(length(referrer)) as referrer_length, count(*) as views, min(referrer) as referrer
from views where referrer <> '' group by regexp_replace(referrer, '^https?://(www[.])?([^/]+)/.*$', 'host') having count(*) > 1000 order by referrer_length desc limit 25;
select sum(screen_width), sum(screen_width + 1), sum(screen_width + 2), sum(screen_width + 3), sum(screen_width + 4), sum(screen_width + 5), sum(screen_width + 6), sum(screen_width + 7), sum(screen_width + 8), sum(screen_width + 9), sum(screen_width + 10), sum(screen_width + 11), sum(screen_width + 12), sum(screen_width + 13), sum(screen_width + 14), sum(screen_width + 15), sum(screen_width + 16), sum(screen_width + 17), sum(screen_width + 18), sum(screen_width + 19) from views;
select search_engine_id, client_ip, count(*) as views, sum(is_refresh) as refreshes, avg(screen_width) as width
from views where search_phrase <> '' group by search_engine_id, client_ip order by views desc, search_engine_id, client_ip limit 10;
select view_id, client_ip, count(*) as views, sum(is_refresh) as refreshes, avg(screen_width) as width
from views where search_phrase <> '' group by view_id, client_ip order by views desc, view_id, client_ip limit 10;
select view_id, client_ip, count(*) as views, sum(is_refresh) as refreshes, avg(screen_width) as width
from views group by view_id, client_ip order by views desc, view_id, client_ip limit 10;
select url, count(*) as views from views group by url order by views desc, url limit 10;
select 1 as one, url, count(*) as views from views group by url order by views desc, url limit 10;
select client_ip, client_ip - 1 as one_less, client_ip - 2 as two_less, client_ip - 3 as three_less, count(*) as views
from views group by client_ip, client_ip - 1, client_ip - 2, client_ip - 3 order by views desc, client_ip limit 10;
select url, count(*) as views from views
where site_id = 1 and event_date >= date '2024-07-01' and event_date <= date '2024-07-31' and is_uncounted = 0 and is_refresh = 0 and url <> ''
group by url order by views desc, url limit 10;
select title, count(*) as views from views
where site_id = 1 and event_date >= date '2024-07-01' and event_date <= date '2024-07-31' and is_uncounted = 0 and is_refresh = 0 and title <> ''
group by title order by views desc, title limit 10;
select url, count(*) as views from views
where site_id = 1 and event_date >= date '2024-07-01' and event_date <= date '2024-07-31' and is_refresh = 0 and is_link <> 0 and is_download = 0
group by url order by views desc, url limit 10 offset 100;
select source_id, search_engine_id, ad_engine_id, case when search_engine_id = 0 and ad_engine_id = 0 then referrer else '' end as source, url as target, count(*) as views
from views where site_id = 1 and event_date >= date '2024-07-01' and event_date <= date '2024-07-31' and is_refresh = 0
group by source_id, search_engine_id, ad_engine_id, case when search_engine_id = 0 and ad_engine_id = 0 then referrer else '' end, url
order by views desc, source_id, search_engine_id, ad_engine_id, source, target limit 10 offset 100;
select url_hash, event_date, count(*) as views from views
where site_id = 1 and event_date >= date '2024-07-01' and event_date <= date '2024-07-31' and is_refresh = 0 and source_id in (-1, 6)
group by url_hash, event_date order by views desc, url_hash, event_date limit 10 offset 10;
select window_width, window_height, count(*) as views from views
where site_id = 1 and event_date >= date '2024-07-01' and event_date <= date '2024-07-31' and is_refresh = 0 and is_uncounted = 0
group by window_width, window_height order by views desc, window_width, window_height limit 10 offset 100;
select date_trunc('minute', event_time) as minute, count(*) as views from views
where site_id = 1 and event_date >= date '2024-07-14' and event_date <= date '2024-07-15' and is_refresh = 0 and is_uncounted = 0
group by date_trunc('minute', event_time) order by minute limit 10 offset 100
