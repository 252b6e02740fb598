//! The statements of the workload, as a gateway makes them.

use quorate_protocol::rubberband::Config;
use quorate_table::{
    expr::{Binary, Expr},
    operation::{Conflict, LoadId, Operation, Output, Select},
    schema::{Schema, TableId},
    value::{Type, Value},
};

use super::{ACCOUNTS, AccountStatement, AccountWorkload, BALANCE, COUNTERS, ENTRIES, LOG, request_log};

impl AccountWorkload {
    pub(super) fn operation(&self, config: &Config, what: &AccountStatement) -> Option<(Operation, &Schema)> {
        let accounts = TableId(config.table(ACCOUNTS)?.0);
        let log = TableId(config.table(LOG)?.0);
        let entries = TableId(config.table(ENTRIES)?.0);
        let counters = TableId(config.table(COUNTERS)?.0);
        let [accounts_schema, log_schema, entries_schema, counters_schema, ..] = &self.schemas[..] else {
            return None;
        };
        let single = |id: i64| vec![Value::Int8(id)];
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
        let account = |id| vec![Value::Int8(id), Value::Int8(BALANCE), Value::Null];
        Some(match what {
            AccountStatement::Create | AccountStatement::Turn { .. } => return None,
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
                (select(accounts, vec![column(0), column(1)], None), accounts_schema)
            }
            AccountStatement::Log { row } => (insert(log, vec![vec![Value::Int8(*row)]]), log_schema),
            // The update divides by zero at one account. Without rule S15 the update would change all other
            // accounts first.
            AccountStatement::Fail { account } => {
                let zero = Expr::binary(Binary::Subtract, column(0), number(*account));
                let share = Expr::binary(Binary::Divide, number(1_000_000), zero);
                (update(vec![(1, Expr::binary(Binary::Add, column(1), share))], None), accounts_schema)
            }
            AccountStatement::Enter { entry } => {
                let rows = request_log::entry_rows(*entry).map(single).collect();
                let returning = self.padded(vec![column(0)]);
                (Operation::Insert { table: entries, rows, returning }, entries_schema)
            }
            AccountStatement::Count { counters: both } => {
                let rows = both.iter().map(|&id| vec![Value::Int8(id), Value::Int8(1)]).collect();
                let more = Expr::binary(Binary::Add, column(1), number(1));
                let conflict = Conflict::Update { assignments: vec![(1, more)], filter: None };
                let returning = self.padded(vec![column(0), column(1)]);
                (Operation::Upsert { table: counters, rows, conflict, returning }, counters_schema)
            }
            AccountStatement::Stage { load, part } => {
                let rows = request_log::load_rows(*load, *part).map(single).collect();
                (Operation::Stage { table: log, load: load_id(*load), rows }, log_schema)
            }
            AccountStatement::Publish { load } => {
                let rows = request_log::all_load_rows(*load).count() as u64;
                (Operation::Publish { table: log, load: load_id(*load), rows }, log_schema)
            }
            AccountStatement::Discard { load } => {
                (Operation::Discard { table: log, load: load_id(*load) }, log_schema)
            }
            // No other query has this number.
            AccountStatement::KillerQuery { account, number: own, wide } => {
                let filter = (!wide).then(|| is(*account));
                (select(accounts, vec![column(0), number(*own)], filter), accounts_schema)
            }
            AccountStatement::LastLook { table } => {
                let schema = &self.schemas[*table];
                let id = TableId(config.table(&schema.name)?.0);
                let columns = (0..schema.columns.len()).map(column).collect();
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
