-- Count what waits in a queue, by subject, without taking anything. For spark-sql, or spark.sql for each statement.
CREATE TEMPORARY VIEW orders
USING duobus
OPTIONS (connectionStringEnv 'ORDERS_BUS', queue 'orders', maxMessages '1000');

SELECT subject, count(*) AS messages FROM orders GROUP BY subject ORDER BY messages DESC;
