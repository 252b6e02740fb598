//! The five transactions (clauses 2.4 to 2.8), each as a conversation: one statement after another between
//! BEGIN and COMMIT.

use rand::RngExt;
use rand_pcg::Pcg64;
use tokio_postgres::{Client, Error, Statement};

use super::population::{DISTRICTS, Size, last_name, skewed};

/// The statements, prepared for one connection.
pub(super) struct Statements(Vec<Statement>);

/// Names of the statements, in the order of [`TEXTS`].
#[derive(Clone, Copy)]
enum StatementName {
    WarehouseTax,
    NextOrder,
    CustomerDiscount,
    InsertOrder,
    InsertNewOrder,
    Item,
    TakeStock,
    InsertLine,
    PayWarehouse,
    PayDistrict,
    SameLastName,
    CustomerCredit,
    Pay,
    PayBadCredit,
    InsertHistory,
    CustomerBalance,
    LastOrder,
    Lines,
    OldestNewOrder,
    DeleteNewOrder,
    Carry,
    DeliverLines,
    LineSum,
    Credit,
    DistrictNext,
    RecentItems,
    LowStock,
}

const TEXTS: [&str; 27] = [
    "select w_tax from warehouse where w_id = $1",
    "update district set d_next_o_id = d_next_o_id + 1 where d_w_id = $1 and d_id = $2 returning d_next_o_id, d_tax",
    "select c_discount, c_last, c_credit from customer where c_w_id = $1 and c_d_id = $2 and c_id = $3",
    "insert into orders values ($1, $2, $3, $4, now(), null, $5, $6)",
    "insert into new_order values ($1, $2, $3)",
    "select i_price, i_name, i_data from item where i_id = $1",
    "update stock set s_quantity = case when s_quantity - $3 >= 10 then s_quantity - $3 else s_quantity - $3 + 91 end, \
     s_ytd = s_ytd + $3, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + $4 \
     where s_w_id = $1 and s_i_id = $2 returning s_dist",
    "insert into order_line values ($1, $2, $3, $4, $5, $6, null, $7, $8, $9)",
    "update warehouse set w_ytd = w_ytd + $2 where w_id = $1 returning w_name",
    "update district set d_ytd = d_ytd + $3 where d_w_id = $1 and d_id = $2 returning d_name",
    "select c_id from customer where c_w_id = $1 and c_d_id = $2 and c_last = $3 order by c_first",
    "select c_credit from customer where c_w_id = $1 and c_d_id = $2 and c_id = $3",
    "update customer set c_balance = c_balance - $4, c_ytd_payment = c_ytd_payment + $4, \
     c_payment_cnt = c_payment_cnt + 1 where c_w_id = $1 and c_d_id = $2 and c_id = $3",
    "update customer set c_balance = c_balance - $4, c_ytd_payment = c_ytd_payment + $4, \
     c_payment_cnt = c_payment_cnt + 1, c_data = substring($5 || c_data, 1, 500) \
     where c_w_id = $1 and c_d_id = $2 and c_id = $3",
    "insert into history values ($1, $2, $3, $4, $5, now(), $6, $7)",
    "select c_balance, c_first, c_middle, c_last from customer where c_w_id = $1 and c_d_id = $2 and c_id = $3",
    "select o_id, o_entry_d, o_carrier_id from orders where o_w_id = $1 and o_d_id = $2 and o_c_id = $3 \
     order by o_id desc limit 1",
    "select ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d from order_line \
     where ol_w_id = $1 and ol_d_id = $2 and ol_o_id = $3",
    "select no_o_id from new_order where no_w_id = $1 and no_d_id = $2 order by no_o_id limit 1 for update",
    "delete from new_order where no_w_id = $1 and no_d_id = $2 and no_o_id = $3",
    "update orders set o_carrier_id = $4 where o_w_id = $1 and o_d_id = $2 and o_id = $3 returning o_c_id",
    "update order_line set ol_delivery_d = now() where ol_w_id = $1 and ol_d_id = $2 and ol_o_id = $3",
    "select sum(ol_amount)::bigint from order_line where ol_w_id = $1 and ol_d_id = $2 and ol_o_id = $3",
    "update customer set c_balance = c_balance + $4, c_delivery_cnt = c_delivery_cnt + 1 \
     where c_w_id = $1 and c_d_id = $2 and c_id = $3",
    "select d_next_o_id from district where d_w_id = $1 and d_id = $2",
    "select distinct ol_i_id from order_line where ol_w_id = $1 and ol_d_id = $2 and ol_o_id >= $3 and ol_o_id < $4",
    "select count(*) from stock where s_w_id = $1 and s_i_id = any($2) and s_quantity < $3",
];

impl Statements {
    pub(super) async fn prepare(client: &Client) -> Result<Statements, Error> {
        let mut statements = Vec::with_capacity(TEXTS.len());
        for text in TEXTS {
            statements.push(client.prepare(text).await?);
        }
        Ok(Statements(statements))
    }

    fn get(&self, name: StatementName) -> &Statement {
        &self.0[name as usize]
    }
}

/// An order: its warehouse, its district, and its number there.
pub(super) type OrderKey = (i32, i32, i32);

/// A transaction with its inputs. An attempt that failed with 40001 is repeated with the same inputs.
pub(super) enum TpccTransaction {
    NewOrder(NewOrder),
    Payment(Payment),
    OrderStatus { warehouse: i32, district: i32, customer: Customer },
    Delivery { warehouse: i32, district: i32, carrier: i32 },
    StockLevel { warehouse: i32, district: i32, threshold: i32 },
}

pub(super) struct NewOrder {
    warehouse: i32,
    district: i32,
    customer: i32,
    lines: Vec<Line>,
}

struct Line {
    item: i32,
    supply: i32,
    quantity: i32,
}

pub(super) struct Payment {
    warehouse: i32,
    district: i32,
    /// The customer's warehouse and district. In one payment of seven, they are not those that get the
    /// payment.
    of: (i32, i32),
    customer: Customer,
    amount: i64,
}

/// The way in which a customer is named.
#[derive(Clone)]
pub(super) enum Customer {
    Id(i32),
    LastName(String),
}

/// The end of a transaction.
pub(super) enum Done {
    /// The transaction has committed. The value is the order that it made, if it made one.
    Committed(Option<OrderKey>),
    /// The transaction was rolled back, as its inputs demand.
    RolledBack,
}

impl TpccTransaction {
    /// Draws transactions in the mix of clause 5.2.3: 45 new orders and 43 payments in a hundred, and 4 of
    /// each other kind. Delivery is drawn once for each district of the specification's delivery.
    pub(super) fn draw(random: &mut Pcg64, size: Size) -> Vec<TpccTransaction> {
        let warehouse = random.random_range(1..=size.warehouses);
        let district = random.random_range(1..=DISTRICTS);
        match random.random_range(0..100) {
            0..45 => vec![TpccTransaction::NewOrder(NewOrder::draw(random, size, warehouse, district))],
            45..88 => vec![TpccTransaction::Payment(Payment::draw(random, size, warehouse, district))],
            88..92 => {
                let customer = Customer::draw(random, size);
                vec![TpccTransaction::OrderStatus { warehouse, district, customer }]
            }
            92..96 => {
                let carrier = random.random_range(1..=10);
                let of = |district| TpccTransaction::Delivery { warehouse, district, carrier };
                (1..=DISTRICTS).map(of).collect()
            }
            _ => {
                let threshold = random.random_range(10..=20);
                vec![TpccTransaction::StockLevel { warehouse, district, threshold }]
            }
        }
    }

    pub(super) fn is_new_order(&self) -> bool {
        matches!(self, TpccTransaction::NewOrder(_))
    }

    /// Executes the statements between BEGIN and COMMIT. Returns the end of the transaction, provided that
    /// the caller's next statement, COMMIT or ROLLBACK, succeeds.
    pub(super) async fn execute(&self, client: &Client, statements: &Statements) -> Result<Done, Error> {
        let get = |name| statements.get(name);
        match self {
            TpccTransaction::NewOrder(order) => order.execute(client, statements).await,
            TpccTransaction::Payment(payment) => payment.execute(client, statements).await,
            TpccTransaction::OrderStatus { warehouse, district, customer } => {
                let Some(customer) = customer.id(client, statements, (*warehouse, *district)).await? else {
                    return Ok(Done::RolledBack);
                };
                client
                    .query_one(get(StatementName::CustomerBalance), &[warehouse, district, &customer])
                    .await?;
                let last = client
                    .query_opt(get(StatementName::LastOrder), &[warehouse, district, &customer])
                    .await?;
                if let Some(last) = last {
                    let order: i32 = last.get(0);
                    client.query(get(StatementName::Lines), &[warehouse, district, &order]).await?;
                }
                Ok(Done::Committed(None))
            }
            TpccTransaction::Delivery { warehouse, district, carrier } => {
                let oldest =
                    client.query_opt(get(StatementName::OldestNewOrder), &[warehouse, district]).await?;
                let Some(oldest) = oldest else { return Ok(Done::RolledBack) };
                let order: i32 = oldest.get(0);
                client.execute(get(StatementName::DeleteNewOrder), &[warehouse, district, &order]).await?;
                let carried = client
                    .query_one(get(StatementName::Carry), &[warehouse, district, &order, carrier])
                    .await?;
                let customer: i32 = carried.get(0);
                client.execute(get(StatementName::DeliverLines), &[warehouse, district, &order]).await?;
                let sum =
                    client.query_one(get(StatementName::LineSum), &[warehouse, district, &order]).await?;
                let sum: i64 = sum.get(0);
                client.execute(get(StatementName::Credit), &[warehouse, district, &customer, &sum]).await?;
                Ok(Done::Committed(None))
            }
            TpccTransaction::StockLevel { warehouse, district, threshold } => {
                let next = client.query_one(get(StatementName::DistrictNext), &[warehouse, district]).await?;
                let next: i32 = next.get(0);
                let recent = client
                    .query(get(StatementName::RecentItems), &[warehouse, district, &(next - 20), &next])
                    .await?;
                let items: Vec<i32> = recent.iter().map(|row| row.get(0)).collect();
                client.query_one(get(StatementName::LowStock), &[warehouse, &items, threshold]).await?;
                Ok(Done::Committed(None))
            }
        }
    }
}

impl Customer {
    fn draw(random: &mut Pcg64, size: Size) -> Customer {
        if random.random_bool(0.6) {
            Customer::LastName(last_name(skewed(random, 255, 0, size.customers.min(1000) - 1)))
        } else {
            Customer::Id(skewed(random, 1023, 1, size.customers))
        }
    }

    /// Returns the customer's number. If several customers have the last name, returns the number of the
    /// middle one.
    async fn id(
        &self,
        client: &Client,
        statements: &Statements,
        (warehouse, district): (i32, i32),
    ) -> Result<Option<i32>, Error> {
        match self {
            Customer::Id(id) => Ok(Some(*id)),
            Customer::LastName(name) => {
                let found = statements.get(StatementName::SameLastName);
                let rows = client.query(found, &[&warehouse, &district, name]).await?;
                Ok(rows.get(rows.len().saturating_sub(1) / 2).map(|row| row.get(0)))
            }
        }
    }
}

impl NewOrder {
    fn draw(random: &mut Pcg64, size: Size, warehouse: i32, district: i32) -> NewOrder {
        let customer = skewed(random, 1023, 1, size.customers);
        let count = random.random_range(5..=15);
        let mut lines: Vec<Line> = (0..count)
            .map(|_| Line {
                item: skewed(random, 8191, 1, size.items),
                supply: match random.random_bool(0.01) {
                    true => random.random_range(1..=size.warehouses),
                    false => warehouse,
                },
                quantity: random.random_range(1..=10),
            })
            .collect();
        // One order in a hundred names an item that does not exist, and is rolled back.
        if random.random_bool(0.01) {
            lines.last_mut().expect("an order has at least five lines").item = size.items + 1;
        }
        NewOrder { warehouse, district, customer, lines }
    }

    async fn execute(&self, client: &Client, statements: &Statements) -> Result<Done, Error> {
        let NewOrder { warehouse, district, customer, lines } = self;
        let get = |name| statements.get(name);
        client.query_one(get(StatementName::WarehouseTax), &[warehouse]).await?;
        let next = client.query_one(get(StatementName::NextOrder), &[warehouse, district]).await?;
        let order: i32 = next.get::<_, i32>(0) - 1;
        client.query_one(get(StatementName::CustomerDiscount), &[warehouse, district, customer]).await?;
        let all_local = i32::from(lines.iter().all(|line| line.supply == *warehouse));
        let count = lines.len() as i32;
        let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
            &[warehouse, district, &order, customer, &count, &all_local];
        client.execute(get(StatementName::InsertOrder), values).await?;
        client.execute(get(StatementName::InsertNewOrder), &[warehouse, district, &order]).await?;
        for (line, number) in lines.iter().zip(1_i32..) {
            let Some(item) = client.query_opt(get(StatementName::Item), &[&line.item]).await? else {
                return Ok(Done::RolledBack);
            };
            let amount = item.get::<_, i64>(0) * i64::from(line.quantity);
            let remote = i32::from(line.supply != *warehouse);
            let stock = client
                .query_one(
                    get(StatementName::TakeStock),
                    &[&line.supply, &line.item, &line.quantity, &remote],
                )
                .await?;
            let info: String = stock.get(0);
            let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[
                warehouse,
                district,
                &order,
                &number,
                &line.item,
                &line.supply,
                &line.quantity,
                &amount,
                &info,
            ];
            client.execute(get(StatementName::InsertLine), values).await?;
        }
        Ok(Done::Committed(Some((*warehouse, *district, order))))
    }
}

impl Payment {
    fn draw(random: &mut Pcg64, size: Size, warehouse: i32, district: i32) -> Payment {
        let of = match random.random_bool(0.15) {
            true => (random.random_range(1..=size.warehouses), random.random_range(1..=DISTRICTS)),
            false => (warehouse, district),
        };
        let customer = Customer::draw(random, size);
        Payment { warehouse, district, of, customer, amount: random.random_range(100..=500_000) }
    }

    async fn execute(&self, client: &Client, statements: &Statements) -> Result<Done, Error> {
        let Payment { warehouse, district, of, customer, amount } = self;
        let get = |name| statements.get(name);
        let paid = client.query_one(get(StatementName::PayWarehouse), &[warehouse, amount]).await?;
        let warehouse_name: String = paid.get(0);
        let paid = client.query_one(get(StatementName::PayDistrict), &[warehouse, district, amount]).await?;
        let district_name: String = paid.get(0);
        let Some(id) = customer.id(client, statements, *of).await? else { return Ok(Done::RolledBack) };
        let found = client.query_one(get(StatementName::CustomerCredit), &[&of.0, &of.1, &id]).await?;
        if found.get::<_, &str>(0) == "BC" {
            let data = format!("{id} {} {} {district} {warehouse} {amount}|", of.1, of.0);
            client.execute(get(StatementName::PayBadCredit), &[&of.0, &of.1, &id, amount, &data]).await?;
        } else {
            client.execute(get(StatementName::Pay), &[&of.0, &of.1, &id, amount]).await?;
        }
        let data = format!("{warehouse_name} {district_name}");
        let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
            &[warehouse, district, &of.0, &of.1, &id, amount, &data];
        client.execute(get(StatementName::InsertHistory), values).await?;
        Ok(Done::Committed(None))
    }
}
