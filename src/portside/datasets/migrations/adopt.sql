-- adopts 0002_order.sql
-- A database of the development version equals the baseline; see `kernel/migrations.py`.
select;
