//! The statements of the workload, as a gateway makes them.

use quorate_protocol::rubberband::Config;
use quorate_table::{
    expr::{Binary, Expr},
    operation::{Conflict, LoadId, Operation, Output, Select},
    schema::{Schema, TableId},
    value::{Type, Value},
};

use super::{ACCOUNTS, BALANCE, Bank, COUNTERS, ENTRIES, LOG, What, book};

impl Bank {
    pub(super) fn operation(&self, config: &Config, what: &What) -> Option<(Operation, &Schema)> {
        let accounts = TableId(config.table(ACCOUNTS)?.0);
        let log = TableId(config.table(LOG)?.0);
        let entries = TableId(config.table(ENTRIES)?.0);
        let counters = TableId(config.table(COUNTERS)?.0);
        let [accounts_schema, log_schema, entries_schema, counters_schema] = &self.schemas;
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
            What::Create => return None,
            What::Open => (insert(accounts, (0..self.accounts).map(account).collect()), accounts_schema),
            What::Mark { account, mark } => {
                (update(vec![(2, number(*mark))], Some(is(*account))), accounts_schema)
            }
            What::Look { account } => {
                (select(accounts, vec![column(2)], Some(is(*account))), accounts_schema)
            }
            What::Transfer { from, to, amount } => {
                let change = Expr::Case {
                    branches: vec![(is(*from), number(-amount))],
                    otherwise: Some(Box::new(number(*amount))),
                    ty: Type::Int8,
                };
                let balance = Expr::binary(Binary::Add, column(1), change);
                let both = Expr::any(vec![is(*from), is(*to)]);
                (update(vec![(1, balance)], Some(both)), accounts_schema)
            }
            What::Sum | What::Glance => (select(accounts, vec![column(0), column(1)], None), accounts_schema),
            What::Log { row } => (insert(log, vec![vec![Value::Int8(*row)]]), log_schema),
            // Divides by zero at one account, having changed all others, were it not for rule S15.
            What::Fail { account } => {
                let zero = Expr::binary(Binary::Subtract, column(0), number(*account));
                let share = Expr::binary(Binary::Divide, number(1_000_000), zero);
                (update(vec![(1, Expr::binary(Binary::Add, column(1), share))], None), accounts_schema)
            }
            What::Enter { entry } => {
                let rows = book::entry_rows(*entry).map(single).collect();
                let returning = self.padded(vec![column(0)]);
                (Operation::Insert { table: entries, rows, returning }, entries_schema)
            }
            What::Count { counters: both } => {
                let rows = both.iter().map(|&id| vec![Value::Int8(id), Value::Int8(1)]).collect();
                let more = Expr::binary(Binary::Add, column(1), number(1));
                let conflict = Conflict::Update { assignments: vec![(1, more)], filter: None };
                let returning = self.padded(vec![column(0), column(1)]);
                (Operation::Upsert { table: counters, rows, conflict, returning }, counters_schema)
            }
            What::Stage { load, part } => {
                let rows = book::load_rows(*load, *part).map(single).collect();
                (Operation::Stage { table: log, load: load_id(*load), rows }, log_schema)
            }
            What::Publish { load } => {
                let rows = book::all_load_rows(*load).count() as u64;
                (Operation::Publish { table: log, load: load_id(*load), rows }, log_schema)
            }
            What::Discard { load } => (Operation::Discard { table: log, load: load_id(*load) }, log_schema),
            // Of all queries it alone has this number.
            What::Deadly { account, number: own, wide } => {
                let filter = (!wide).then(|| is(*account));
                (select(accounts, vec![column(0), number(*own)], filter), accounts_schema)
            }
            What::LastLook { table } => {
                let schema = &self.schemas[*table];
                let id = TableId(config.table(&schema.name)?.0);
                let columns = (0..schema.columns.len()).map(column).collect();
                (select(id, columns, None), schema)
            }
        })
    }
}

impl Bank {
    /// What a statement gives back, with a text that makes it long if the scenario wants that.
    fn padded(&self, mut returning: Vec<Expr>) -> Vec<Expr> {
        if self.returned_bytes > 0 {
            let text = Value::text_of("x".repeat(self.returned_bytes));
            returning.push(Expr::constant(text, Type::Text));
        }
        returning
    }
}

/// Loads of the simulator; no gateway's.
const LOADS: u128 = 0x10ad;
