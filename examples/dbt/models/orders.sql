{{ config(materialized='table', file_format='parquet') }}
select id % 10 as customer, id as price from range(1000)
