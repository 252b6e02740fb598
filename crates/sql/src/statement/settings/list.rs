//! The settings.

use super::{
    super::modes::Isolation,
    setting::{
        Setting,
        Takes::{self, *},
    },
};

macro_rules! settings {
    ($($name:literal, $default:expr, $takes:expr $(, $description:literal)?;)*) => {
        /// All settings, sorted by name without regard to case.
        pub const SETTINGS: &[Setting] =
            &[$(setting($name, $default, $takes, &[KEPT $(, $description)?])),*];
    };
}

/// Creates a setting. The last of `descriptions` describes it: its own description, or [`KEPT`] if it has
/// none.
const fn setting(
    name: &'static str,
    default: &'static str,
    takes: Takes,
    descriptions: &[&'static str],
) -> Setting {
    Setting { name, default, takes, description: descriptions[descriptions.len() - 1] }
}

/// The description of a setting without one of its own.
const KEPT: &str = "The setting is stored for the client and has no effect.";

const LOG_LEVELS: &[&str] = &[
    "debug5", "debug4", "debug3", "debug2", "debug1", "info", "notice", "warning", "error", "log", "fatal",
    "panic",
];

const SEARCH_PATHS: &[&str] = &[
    "public",
    "\"$user\", public",
    "\"$user\",public",
    "$user, public",
    "",
    "public, pg_catalog",
    "pg_catalog",
    "pg_catalog, public",
];

// Each line has a name, the default, the accepted values, and a description if the setting has an effect.
settings! {
    "application_name", "", Anything, "The name that the client gives itself.";
    "array_nulls", "on", Only(&["on", "true", "1"]),
        "An unquoted NULL in the text of an array is a null value.";
    "backslash_quote", "safe_encoding", Words(&["safe_encoding", "on", "off"]);
    "block_size", "8192", ReadOnly, "The page size that clients assume.";
    "bytea_output", "hex", Only(&["hex", "escape"]), "No effect: the type bytea is not supported.";
    "check_function_bodies", "on", Switch;
    "client_connection_check_interval", "0", Milliseconds;
    "client_encoding", "UTF8", Only(&["utf8", "utf-8", "unicode"]), "The client's character set.";
    "client_min_messages", "notice", Anything, "Which notices are sent to the client.";
    "constraint_exclusion", "partition", Words(&["partition", "on", "off"]);
    "cpu_index_tuple_cost", "0.005", Number;
    "cpu_operator_cost", "0.0025", Number;
    "cpu_tuple_cost", "0.01", Number;
    "cursor_tuple_fraction", "0.1", Number;
    "data_checksums", "off", ReadOnly, "Always off: tables are not stored in pages.";
    "DateStyle", "ISO, MDY", Only(&["iso", "iso, mdy", "iso,mdy", "mdy"]), "How dates are written.";
    "deadlock_timeout", "1s", Milliseconds;
    "debug_print_plan", "off", Switch;
    "default_statistics_target", "100", Integer(1, 10000);
    "default_table_access_method", "heap", ReadOnly, "How tables are stored; the value has no effect.";
    "default_tablespace", "", Only(&["", "pg_default"]), "There is one tablespace.";
    "default_toast_compression", "pglz", Words(&["pglz", "lz4"]);
    "default_transaction_deferrable", "off", Switch;
    "default_transaction_isolation", "read committed", Words(Isolation::NAMES),
        "The isolation level of new transaction blocks.";
    "default_transaction_read_only", "off", Switch, "Whether new transaction blocks refuse writes.";
    "effective_cache_size", "4GB", Size;
    "effective_io_concurrency", "1", Integer(0, 1000);
    "enable_async_append", "on", Switch;
    "enable_bitmapscan", "on", Switch;
    "enable_gathermerge", "on", Switch;
    "enable_hashagg", "on", Switch;
    "enable_hashjoin", "on", Switch;
    "enable_incremental_sort", "on", Switch;
    "enable_indexonlyscan", "on", Switch;
    "enable_indexscan", "on", Switch;
    "enable_material", "on", Switch;
    "enable_memoize", "on", Switch;
    "enable_mergejoin", "on", Switch;
    "enable_nestloop", "on", Switch;
    "enable_parallel_append", "on", Switch;
    "enable_parallel_hash", "on", Switch;
    "enable_partition_pruning", "on", Switch;
    "enable_partitionwise_aggregate", "off", Switch;
    "enable_partitionwise_join", "off", Switch;
    "enable_seqscan", "on", Switch;
    "enable_sort", "on", Switch;
    "enable_tidscan", "on", Switch;
    "escape_string_warning", "on", Switch;
    "exit_on_error", "off", Switch;
    "extra_float_digits", "1", Integer(-15, 3), "Floats are always written exactly.";
    "from_collapse_limit", "8", Integer(1, i32::MAX as i64);
    "geqo", "on", Switch;
    "geqo_effort", "5", Integer(1, 10);
    "geqo_threshold", "12", Integer(2, i32::MAX as i64);
    "hash_mem_multiplier", "2", Number;
    "idle_in_transaction_session_timeout", "0", Milliseconds,
        "How long a transaction block may wait for its client; 0 means no limit.";
    "idle_session_timeout", "0", Milliseconds;
    "in_hot_standby", "off", ReadOnly, "Whether the server is a standby.";
    "integer_datetimes", "on", ReadOnly, "Whether dates and times are stored as integers.";
    "IntervalStyle", "postgres", Words(&["postgres", "iso_8601"]),
        "How intervals are written; only the style postgres is supported.";
    "is_superuser", "on", ReadOnly, "Whether the user may do everything.";
    "jit", "off", Switch, "No effect: queries are never compiled.";
    "jit_above_cost", "100000", Number;
    "jit_expressions", "on", Switch;
    "jit_inline_above_cost", "500000", Number;
    "jit_optimize_above_cost", "500000", Number;
    "jit_tuple_deforming", "on", Switch;
    "join_collapse_limit", "8", Integer(1, i32::MAX as i64);
    "lc_collate", "C", ReadOnly, "The collation.";
    "lc_ctype", "C", ReadOnly, "The character classes.";
    "lc_messages", "C", Only(&["c", "en_us.utf-8"]), "The language of messages.";
    "lo_compat_privileges", "off", Switch;
    "lock_timeout", "0", Milliseconds, "How long a statement waits for another block at the same gateway, at most a second; 0 means a second.";
    "log_duration", "off", Switch;
    "log_error_verbosity", "default", Words(&["terse", "default", "verbose"]);
    "log_executor_stats", "off", Switch;
    "log_lock_waits", "off", Switch;
    "log_min_duration_statement", "-1", Integer(-1, i32::MAX as i64);
    "log_min_error_statement", "error", Words(LOG_LEVELS);
    "log_min_messages", "warning", Words(LOG_LEVELS);
    "log_parser_stats", "off", Switch;
    "log_planner_stats", "off", Switch;
    "log_statement", "none", Words(&["none", "ddl", "mod", "all"]);
    "log_statement_stats", "off", Switch;
    "log_temp_files", "-1", Integer(-1, i32::MAX as i64);
    "logical_decoding_work_mem", "64MB", Size;
    "maintenance_io_concurrency", "10", Integer(0, 1000);
    "maintenance_work_mem", "64MB", Size;
    "max_connections", "1000", ReadOnly, "How many clients a gateway serves at most, by default.";
    "max_function_args", "100", ReadOnly, "The most arguments that a client expects a function to have.";
    "max_identifier_length", "63", ReadOnly, "The longest name.";
    "max_index_keys", "32", ReadOnly, "The most columns that a client expects a key to have.";
    "max_parallel_maintenance_workers", "2", Integer(0, 1024);
    "max_parallel_workers", "8", Integer(0, 1024);
    "max_parallel_workers_per_gather", "2", Integer(0, 1024);
    "max_prepared_transactions", "0", ReadOnly, "Always 0: prepared transactions are not supported.";
    "max_stack_depth", "2MB", Size;
    "min_parallel_index_scan_size", "512kB", Size;
    "min_parallel_table_scan_size", "8MB", Size;
    "parallel_leader_participation", "on", Switch;
    "parallel_setup_cost", "1000", Number;
    "parallel_tuple_cost", "0.1", Number;
    "password_encryption", "scram-sha-256", Words(&["md5", "scram-sha-256"]);
    "plan_cache_mode", "auto", Words(&["auto", "force_generic_plan", "force_custom_plan"]);
    "quorate.read", "sequential", Strength, "The strength of reads.";
    "quorate.request_id", "", Request,
        "The id under which the next write or transaction is sent, until its outcome is known.";
    "quote_all_identifiers", "off", Switch;
    "random_page_cost", "4", Number;
    "role", "none", Only(&["none"]), "The role is always the user.";
    "row_security", "on", Switch, "No effect: row policies are not supported.";
    "search_path", "\"$user\", public", Only(SEARCH_PATHS), "Where names are looked up.";
    "seq_page_cost", "1", Number;
    "server_encoding", "UTF8", ReadOnly, "The server's character set.";
    "server_version", crate::POSTGRES_VERSION, ReadOnly,
        "The PostgreSQL version whose behaviour the server has.";
    "server_version_num", crate::POSTGRES_VERSION_NUMBER, ReadOnly,
        "The PostgreSQL version whose behaviour the server has, as a number.";
    "session_authorization", "", ReadOnly, "The user.";
    "session_replication_role", "origin", Words(&["origin", "replica", "local"]);
    "ssl", "off", ReadOnly, "Whether connections are encrypted.";
    "standard_conforming_strings", "on", Only(&["on", "true", "1"]),
        "Backslashes in strings are ordinary characters.";
    "statement_timeout", "0", Milliseconds, "How long a statement may take; 0 means no limit.";
    "synchronize_seqscans", "on", Switch, "No effect: all scans are shared.";
    "synchronous_commit", "on", Words(&["local", "remote_write", "remote_apply", "on", "off"]);
    "tcp_keepalives_count", "0", Integer(0, i32::MAX as i64);
    "tcp_keepalives_idle", "0", Integer(0, i32::MAX as i64);
    "tcp_keepalives_interval", "0", Integer(0, i32::MAX as i64);
    "tcp_user_timeout", "0", Integer(0, i32::MAX as i64);
    "temp_buffers", "8MB", Size;
    "temp_tablespaces", "", Only(&["", "pg_default"]), "No effect: temporary tables are not supported.";
    "TimeZone", "UTC", Utc, "The time zone.";
    "track_activities", "on", Switch;
    "track_counts", "on", Switch;
    "track_io_timing", "off", Switch;
    "transaction_deferrable", "off", Switch;
    "transaction_isolation", "read committed", Words(Isolation::NAMES),
        "The isolation level of the present transaction block.";
    "transaction_read_only", "off", Switch, "Whether the present transaction block refuses writes.";
    "transaction_timeout", "0", Milliseconds, "How long a transaction block may take; 0 means no limit.";
    "transform_null_equals", "off", Only(&["off", "false", "0"]),
        "Always off: a comparison with NULL gives NULL.";
    "vacuum_cost_delay", "0", Number;
    "vacuum_cost_limit", "200", Integer(1, 10000);
    "wal_compression", "off", Switch;
    "wal_level", "replica", ReadOnly, "No effect: there is no write-ahead log to replicate from.";
    "work_mem", "4MB", Size;
    "xmlbinary", "base64", Words(&["base64", "hex"]);
    "xmloption", "content", Words(&["content", "document"]);
}
