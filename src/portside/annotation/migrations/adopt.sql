-- adopts 0001_annotation.sql
-- A database of the development version equals the baseline; see `kernel/migrations.py`.
select;
