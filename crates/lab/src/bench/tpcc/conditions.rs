//! The consistency conditions of clause 3.3.2, checked after a run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use tokio_postgres::Client;

use super::transactions::OrderKey;

/// The result of the check.
#[derive(Default)]
pub(super) struct Findings {
    /// Confirmed new orders that are not there.
    pub(super) lost: u64,
    /// Orders of which only a part is there.
    pub(super) half: u64,
    /// A sentence for each violated condition of a warehouse or district.
    pub(super) violated: Vec<String>,
}

/// A district: its warehouse, and its number there.
type District = (i32, i32);

/// An order, as far as the conditions concern it.
struct FoundOrder {
    carried: bool,
    lines: i32,
}

/// Lines of an order.
#[derive(Clone, Copy, Default)]
struct Lines {
    count: i32,
    delivered: i32,
}

/// Checks conditions 1 to 9, and that the tables have the orders whose commit was confirmed.
pub(super) async fn check(client: &Client, confirmed: &BTreeSet<OrderKey>) -> Result<Findings> {
    let mut findings = Findings::default();
    let districts = sums(client, "select d_w_id, d_id, d_next_o_id::bigint, d_ytd from district").await?;
    let orders = orders(client).await?;
    let lines = lines(client).await?;
    let new_orders = new_orders(client).await?;
    findings.lost = confirmed.iter().filter(|key| !orders.contains_key(key)).count() as u64;
    findings.money(client, &districts).await?;
    findings.numbers(&districts, &orders, &new_orders);
    findings.parts(&orders, &lines, &new_orders);
    Ok(findings)
}

impl Findings {
    fn violated(&mut self, condition: u32, text: &str) {
        self.violated.push(format!("condition {condition}: {text}"));
    }

    /// Conditions 1, 8 and 9: warehouses, districts and the history agree on the money that was paid.
    async fn money(&mut self, client: &Client, districts: &BTreeMap<District, (i64, i64)>) -> Result<()> {
        let paid =
            "select h_w_id, h_d_id, count(*), sum(h_amount)::bigint from history group by h_w_id, h_d_id";
        let history = sums(client, paid).await?;
        for (district, (_, year_to_date)) in districts {
            let paid = history.get(district).map_or(0, |(_, sum)| *sum);
            if paid != *year_to_date {
                self.violated(
                    9,
                    &format!("district {district:?} has {year_to_date}, and its history {paid}"),
                );
            }
        }
        for row in client.query("select w_id, w_ytd from warehouse", &[]).await.context("warehouse")? {
            let (warehouse, year_to_date): (i32, i64) = (row.get(0), row.get(1));
            let of = |sums: &BTreeMap<District, (i64, i64)>| -> i64 {
                let of_warehouse = sums.iter().filter(|((of, _), _)| *of == warehouse);
                of_warehouse.map(|(_, (_, sum))| *sum).sum()
            };
            if of(districts) != year_to_date {
                self.violated(1, &format!("warehouse {warehouse} and its districts have different sums"));
            }
            if of(&history) != year_to_date {
                self.violated(8, &format!("warehouse {warehouse} and its history have different sums"));
            }
        }
        Ok(())
    }

    /// Conditions 2 and 3: the numbers of orders have no gaps, and the district knows the last number.
    fn numbers(
        &mut self,
        districts: &BTreeMap<District, (i64, i64)>,
        orders: &BTreeMap<OrderKey, FoundOrder>,
        new_orders: &BTreeSet<OrderKey>,
    ) {
        for (&(warehouse, district), (next, _)) in districts {
            let range = (warehouse, district, i32::MIN)..=(warehouse, district, i32::MAX);
            let last = orders.range(range.clone()).next_back().map_or(0, |((_, _, order), _)| *order);
            if i64::from(last) + 1 != *next {
                self.violated(
                    2,
                    &format!("district {district} of warehouse {warehouse}: {last} is followed by {next}"),
                );
            }
            let new: Vec<i32> = new_orders.range(range).map(|(_, _, order)| *order).collect();
            if let (Some(first), Some(newest)) = (new.first(), new.last()) {
                if *newest != last {
                    self.violated(
                        2,
                        &format!("district {district} of warehouse {warehouse}: newest {newest} of {last}"),
                    );
                }
                if newest - first + 1 != new.len() as i32 {
                    self.violated(3, &format!("district {district} of warehouse {warehouse} has a gap"));
                }
            }
        }
    }

    /// Conditions 4 to 7: each order has all its lines, and it is new, or delivered as a whole.
    fn parts(
        &mut self,
        orders: &BTreeMap<OrderKey, FoundOrder>,
        lines: &BTreeMap<OrderKey, Lines>,
        new_orders: &BTreeSet<OrderKey>,
    ) {
        for (key, order) in orders {
            let of_order = lines.get(key).copied().unwrap_or_default();
            if of_order.count != order.lines {
                self.half += 1;
                self.violated(6, &format!("order {key:?} has {} of {} lines", of_order.count, order.lines));
            }
            if order.carried == new_orders.contains(key) {
                self.half += 1;
                self.violated(5, &format!("order {key:?} is both new and delivered, or neither"));
            }
            let delivered = if order.carried { of_order.count } else { 0 };
            if of_order.delivered != delivered {
                self.half += 1;
                self.violated(
                    7,
                    &format!("order {key:?}: {} of {delivered} lines are delivered", of_order.delivered),
                );
            }
        }
        // If condition 6 holds, condition 4 can fail only by lines and new orders that belong to no order.
        let strays = lines.keys().chain(new_orders).filter(|key| !orders.contains_key(key)).count();
        if strays > 0 {
            self.half += strays as u64;
            self.violated(4, &format!("{strays} lines and new orders belong to no order"));
        }
    }
}

/// Asks for two numbers of each district.
async fn sums(client: &Client, sql: &str) -> Result<BTreeMap<District, (i64, i64)>> {
    let rows = client.query(sql, &[]).await.with_context(|| sql.to_owned())?;
    Ok(rows.iter().map(|row| ((row.get(0), row.get(1)), (row.get(2), row.get(3)))).collect())
}

async fn orders(client: &Client) -> Result<BTreeMap<OrderKey, FoundOrder>> {
    let sql = "select o_w_id, o_d_id, o_id, o_carrier_id is not null, o_ol_cnt from orders";
    let rows = client.query(sql, &[]).await.context(sql)?;
    let order = |row: &tokio_postgres::Row| FoundOrder { carried: row.get(3), lines: row.get(4) };
    Ok(rows.iter().map(|row| ((row.get(0), row.get(1), row.get(2)), order(row))).collect())
}

async fn lines(client: &Client) -> Result<BTreeMap<OrderKey, Lines>> {
    let sql = "select ol_w_id, ol_d_id, ol_o_id, count(*)::int, count(ol_delivery_d)::int from order_line \
               group by ol_w_id, ol_d_id, ol_o_id";
    let rows = client.query(sql, &[]).await.context(sql)?;
    let lines = |row: &tokio_postgres::Row| Lines { count: row.get(3), delivered: row.get(4) };
    Ok(rows.iter().map(|row| ((row.get(0), row.get(1), row.get(2)), lines(row))).collect())
}

async fn new_orders(client: &Client) -> Result<BTreeSet<OrderKey>> {
    let sql = "select no_w_id, no_d_id, no_o_id from new_order";
    let rows = client.query(sql, &[]).await.context(sql)?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}
