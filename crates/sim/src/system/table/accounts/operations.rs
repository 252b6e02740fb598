//! The statements of the workload, as a gateway makes them.

use quorate_protocol::rubberband::Config;
use quorate_table::{
    expr::{Binary, Expr},
    operation::{Conflict, LoadId, Operation, Output, Select},
    schema::{Schema, TableId},
    value::{Row, Type, Value},
};

use super::{
    ACCOUNTS, AccountStatement, AccountWorkload, BALANCE, COUNTERS, ENTRIES, LOG, altering::added_column,
    request_log,
};

impl AccountWorkload {
    pub(super) fn operation(&self, config: &Config, what: &AccountStatement) -> Option<(Operation, &Schema)> {
        let accounts = TableId(config.table(ACCOUNTS)?.0);
        let log = TableId(config.table(LOG)?.0);
        let entries = TableId(config.table(ENTRIES)?.0);
        let counters = TableId(config.table(COUNTERS)?.0);
        let [accounts_schema, log_schema, entries_schema, counters_schema, ..] = &self.schemas[..] else {
            return None;
        };
        let added = |name: &str| added_column(config, name);
        let with_added = |mut row: Row, table: &str| {
            row.extend(added(table).map(Value::Int8));
            row
        };
        let in_log = |id: i64| with_added(vec![Value::Int8(id)], LOG);
        let in_entries = |id: i64| with_added(vec![Value::Int8(id)], ENTRIES);
        let load_id = |load: i64| LoadId(LOADS, load as u64);
        let column = |index| Expr::Column(index, Type::Int8);
        let number = |value| Expr::constant(Value::Int8(value), Type::Int8);
        let is = |account| Expr::binary(Binary::Equal, column(0), number(account));
        let update = |assignments, filter| Operation::Update {
            table: accounts,
            assignments,
            filter,
            returning: Vec::new(),
        };
        let select = |table, columns: Vec<Expr>, filter| {
            let output = Output::Rows { columns, order: Vec::new(), limit: None, distinct: false };
            Operation::Select(Select { table, filter, output })
        };
        let insert = |table, rows| Operation::Insert { table, rows, returning: Vec::new() };
        let account = |id| with_added(vec![Value::Int8(id), Value::Int8(BALANCE), Value::Null], ACCOUNTS);
        let shown = |mut columns: Vec<Expr>, schema: &Schema| {
            columns.extend(added(&schema.name).map(|_| column(schema.columns.len())));
            columns
        };
        Some(match what {
            AccountStatement::Create | AccountStatement::Alter | AccountStatement::Turn { .. } => {
                return None;
            }
            AccountStatement::Open => {
                (insert(accounts, (0..self.accounts).map(account).collect()), accounts_schema)
            }
            AccountStatement::Mark { account, mark } => {
                (update(vec![(2, number(*mark))], Some(is(*account))), accounts_schema)
            }
            AccountStatement::Look { account } => {
                (select(accounts, vec![column(2)], Some(is(*account))), accounts_schema)
            }
            AccountStatement::Transfer { from, to, amount } => {
                let change = Expr::Case {
                    branches: vec![(is(*from), number(-amount))],
                    otherwise: Some(Box::new(number(*amount))),
                    ty: Type::Int8,
                };
                let balance = Expr::binary(Binary::Add, column(1), change);
                let both = Expr::any(vec![is(*from), is(*to)]);
                (update(vec![(1, balance)], Some(both)), accounts_schema)
            }
            AccountStatement::Sum | AccountStatement::Glance => {
                let columns = shown(vec![column(0), column(1)], accounts_schema);
                (select(accounts, columns, None), accounts_schema)
            }
            AccountStatement::Log { row } => (insert(log, vec![in_log(*row)]), log_schema),
            // The update divides by zero at one account. Without rule S15 the update would change all other
            // accounts first.
            AccountStatement::Fail { account } => {
                let zero = Expr::binary(Binary::Subtract, column(0), number(*account));
                let share = Expr::binary(Binary::Divide, number(1_000_000), zero);
                (update(vec![(1, Expr::binary(Binary::Add, column(1), share))], None), accounts_schema)
            }
            AccountStatement::Enter { entry } => {
                let rows = request_log::entry_rows(*entry).map(in_entries).collect();
                let returning = self.padded(vec![column(0)]);
                (Operation::Insert { table: entries, rows, returning }, entries_schema)
            }
            AccountStatement::Count { counters: both } => {
                let row = |&id: &i64| with_added(vec![Value::Int8(id), Value::Int8(1)], COUNTERS);
                let rows = both.iter().map(row).collect();
                let more = Expr::binary(Binary::Add, column(1), number(1));
                let conflict = Conflict::Update { assignments: vec![(1, more)], filter: None };
                let returning = self.padded(vec![column(0), column(1)]);
                (Operation::Upsert { table: counters, rows, conflict, returning }, counters_schema)
            }
            AccountStatement::Stage { load, part } => {
                let table = self.loads.get(load)?.table;
                let rows = request_log::load_rows(*load, *part).map(in_log).collect();
                (Operation::Stage { table, load: load_id(*load), rows }, log_schema)
            }
            AccountStatement::Publish { load } => {
                let table = self.loads.get(load)?.table;
                let rows = request_log::all_load_rows(*load).count() as u64;
                (Operation::Publish { table, load: load_id(*load), rows }, log_schema)
            }
            AccountStatement::Discard { load } => {
                (Operation::Discard { table: self.loads.get(load)?.table, load: load_id(*load) }, log_schema)
            }
            // No other query has this number.
            AccountStatement::KillerQuery { account, number: own, wide } => {
                let filter = (!wide).then(|| is(*account));
                (select(accounts, vec![column(0), number(*own)], filter), accounts_schema)
            }
            AccountStatement::LastLook { table } => {
                let schema = &self.schemas[*table];
                let id = TableId(config.table(&schema.name)?.0);
                let columns = shown((0..schema.columns.len()).map(column).collect(), schema);
                (select(id, columns, None), schema)
            }
        })
    }
}

impl AccountWorkload {
    /// Returns the expressions that a statement returns, with a long text if the scenario asks for it.
    fn padded(&self, mut returning: Vec<Expr>) -> Vec<Expr> {
        if self.returned_bytes > 0 {
            let text = Value::text_of("x".repeat(self.returned_bytes));
            returning.push(Expr::constant(text, Type::Text));
        }
        returning
    }
}

/// The session id of loads in the simulator; no gateway has it.
const LOADS: u128 = 0x10ad;
