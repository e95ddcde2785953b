select customer, sum(price) as spent from {{ ref('orders') }} group by customer order by spent, customer
