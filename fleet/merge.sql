-- Adds files of evidence with DuckDB: docs/fleet.md.
--
--   duckdb -c "SET VARIABLE input = 'evidence/**/*.parquet'" -c "SET VARIABLE output = 'merged.parquet'" -f fleet/merge.sql
--
-- Rows with the same key columns become one row, with the sums of the other columns. A file is refused if it has rows of another
-- version, or a number that is negative or missing: in a sum, that would not be seen any more. With SET VARIABLE hosts = false, the
-- rows by which hosts are compared are left out.

COPY (
    SELECT
        kind, label, source, kernel, cpu, cpus, cell, cgroup, comm, hint, cell_b, cgroup_b, comm_b, hint_b, host, version, part,
        -- The sum of BIGINT is HUGEINT; the cast is an error if it does not fit.
        SUM(runs)::BIGINT AS runs,
        SUM(threads)::BIGINT AS threads,
        SUM(cgroups)::BIGINT AS cgroups,
        SUM(samples)::BIGINT AS samples,
        SUM(duration_ms)::BIGINT AS duration_ms,
        SUM(lost)::BIGINT AS lost,
        SUM(misses)::BIGINT AS misses,
        SUM(counted)::BIGINT AS counted,
        SUM(lines)::BIGINT AS lines,
        SUM(possible)::BIGINT AS possible,
        SUM(shared)::BIGINT AS shared,
        SUM(spread)::BIGINT AS spread,
        SUM(common)::BIGINT AS common,
        SUM(contended)::BIGINT AS contended,
        SUM(avoidable)::BIGINT AS avoidable,
        SUM(runs_sharing)::BIGINT AS runs_sharing,
        SUM(runs_apart)::BIGINT AS runs_apart
    FROM read_parquet(getvariable('input'), hive_partitioning = false)
    -- One negative number makes the bitwise OR of all of them negative, and one that is missing leaves nothing of it.
    WHERE CASE
            WHEN version = 1 AND (runs | threads | cgroups | samples | duration_ms | lost | misses | counted | lines | possible
                | shared | spread | common | contended | avoidable | runs_sharing | runs_apart) >= 0
            THEN COALESCE(getvariable('hosts'), true) OR kind <> 'host'
            ELSE error(filename || ': not evidence of version 1, or a number in it is negative or missing')
        END
    GROUP BY ALL
    ORDER BY ALL
) TO (getvariable('output')) (FORMAT parquet, COMPRESSION snappy);
