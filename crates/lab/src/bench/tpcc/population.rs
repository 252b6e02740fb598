//! The tables of TPC-C and their rows at the beginning (clauses 1.3 and 4.3).

use std::fmt::Write as _;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::SinkExt;
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_pcg::Pcg64;
use tokio_postgres::Client;

/// Districts of a warehouse.
pub(super) const DISTRICTS: i32 = 10;

/// The number of rows at the beginning.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) warehouses: i32,
    /// Customers of a district.
    pub(super) customers: i32,
    pub(super) items: i32,
}

/// The tables. All rows of a warehouse lie at one point of the ring.
const TABLES: [(&str, &str, &str); 9] = [
    (
        "warehouse",
        "w_id int primary key, w_name varchar(10), w_street varchar(20), w_city varchar(20), w_state varchar(2), \
         w_zip varchar(9), w_tax int, w_ytd bigint",
        "w_id",
    ),
    (
        "district",
        "d_w_id int, d_id int, d_name varchar(10), d_street varchar(20), d_city varchar(20), d_state varchar(2), \
         d_zip varchar(9), d_tax int, d_ytd bigint, d_next_o_id int, primary key (d_w_id, d_id)",
        "d_w_id",
    ),
    (
        "customer",
        "c_w_id int, c_d_id int, c_id int, c_first varchar(16), c_middle varchar(2), c_last varchar(16), \
         c_street varchar(20), c_city varchar(20), c_state varchar(2), c_zip varchar(9), c_phone varchar(16), \
         c_since timestamptz, c_credit varchar(2), c_credit_lim bigint, c_discount int, c_balance bigint, \
         c_ytd_payment bigint, c_payment_cnt int, c_delivery_cnt int, c_data text, \
         primary key (c_w_id, c_d_id, c_id)",
        "c_w_id",
    ),
    (
        "history",
        "h_w_id int, h_d_id int, h_c_w_id int, h_c_d_id int, h_c_id int, h_date timestamptz, h_amount bigint, \
         h_data varchar(24)",
        "h_w_id",
    ),
    (
        "new_order",
        "no_w_id int, no_d_id int, no_o_id int, primary key (no_w_id, no_d_id, no_o_id)",
        "no_w_id",
    ),
    (
        "orders",
        "o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d timestamptz, o_carrier_id int, o_ol_cnt int, \
         o_all_local int, primary key (o_w_id, o_d_id, o_id)",
        "o_w_id",
    ),
    (
        "order_line",
        "ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_supply_w_id int, \
         ol_delivery_d timestamptz, ol_quantity int, ol_amount bigint, ol_dist_info varchar(24), \
         primary key (ol_w_id, ol_d_id, ol_o_id, ol_number)",
        "ol_w_id",
    ),
    (
        "item",
        "i_id int primary key, i_im_id int, i_name varchar(24), i_price bigint, i_data varchar(50)",
        "i_id",
    ),
    (
        "stock",
        "s_w_id int, s_i_id int, s_quantity int, s_dist varchar(24), s_ytd bigint, s_order_cnt int, \
         s_remote_cnt int, s_data varchar(50), primary key (s_w_id, s_i_id)",
        "s_w_id",
    ),
];

/// Size of the collected rows at which a COPY sends them, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Creates the tables and fills them.
pub(super) async fn load(client: &Client, size: Size, seed: u64) -> Result<()> {
    for (name, columns, partition) in TABLES {
        let create = format!("create table {name} ({columns}) with (partition_by = 'hash({partition})')");
        client.batch_execute(&create).await.with_context(|| format!("creating the table {name}"))?;
    }
    let mut rows = Population { random: Pcg64::seed_from_u64(seed), size };
    copy(client, "item", (1..=size.items).map(|item| rows.item(item))).await?;
    for warehouse in 1..=size.warehouses {
        copy(client, "warehouse", [rows.warehouse(warehouse)]).await?;
        copy(client, "stock", (1..=size.items).map(|item| rows.stock(warehouse, item))).await?;
        for district in 1..=DISTRICTS {
            copy(client, "district", [rows.district(warehouse, district)]).await?;
            let customers = (1..=size.customers).map(|customer| rows.customer(warehouse, district, customer));
            copy(client, "customer", customers).await?;
            let history = (1..=size.customers).map(|customer| {
                let text = "initial payment";
                format!("{warehouse}\t{district}\t{warehouse}\t{district}\t{customer}\t{SINCE}\t1000\t{text}")
            });
            copy(client, "history", history).await?;
            rows.orders(client, warehouse, district).await?;
        }
    }
    Ok(())
}

/// The time of everything that happened before the measurement.
const SINCE: &str = "2026-01-01 00:00:00+00";

async fn copy(client: &Client, table: &str, rows: impl IntoIterator<Item = String>) -> Result<()> {
    let mut copy = std::pin::pin!(client.copy_in(&format!("copy {table} from stdin")).await?);
    let mut piece = String::new();
    for row in rows {
        piece.push_str(&row);
        piece.push('\n');
        if piece.len() >= PIECE_BYTES {
            copy.send(Bytes::from(std::mem::take(&mut piece))).await?;
        }
    }
    copy.send(Bytes::from(piece)).await?;
    copy.finish().await.with_context(|| format!("filling the table {table}"))?;
    Ok(())
}

/// Draws the rows.
struct Population {
    random: Pcg64,
    size: Size,
}

impl Population {
    fn item(&mut self, item: i32) -> String {
        let (image, price) = (self.random.random_range(1..=10_000), self.random.random_range(100..=10_000));
        format!("{item}\t{image}\t{}\t{price}\t{}", self.text(14, 24), self.text(26, 50))
    }

    fn address(&mut self) -> String {
        let zip = self.random.random_range(0..10_000);
        format!("{}\t{}\t{}\t{zip:04}11111", self.text(10, 20), self.text(10, 20), self.text(2, 2))
    }

    fn warehouse(&mut self, warehouse: i32) -> String {
        let (name, address, tax) = (self.text(6, 10), self.address(), self.random.random_range(0..=2000));
        let paid = i64::from(self.size.customers) * i64::from(DISTRICTS) * 1000;
        format!("{warehouse}\t{name}\t{address}\t{tax}\t{paid}")
    }

    fn district(&mut self, warehouse: i32, district: i32) -> String {
        let (name, address, tax) = (self.text(6, 10), self.address(), self.random.random_range(0..=2000));
        let (paid, next) = (i64::from(self.size.customers) * 1000, self.size.customers + 1);
        format!("{warehouse}\t{district}\t{name}\t{address}\t{tax}\t{paid}\t{next}")
    }

    fn customer(&mut self, warehouse: i32, district: i32, customer: i32) -> String {
        let name = if customer <= 1000 { customer - 1 } else { skewed(&mut self.random, 255, 0, 999) };
        let credit = if self.random.random_bool(0.1) { "BC" } else { "GC" };
        let mut row =
            format!("{warehouse}\t{district}\t{customer}\t{}\tOE\t{}", self.text(8, 16), last_name(name));
        let (address, phone) = (self.address(), self.random.random_range(0..10_u64.pow(16)));
        let discount = self.random.random_range(0..=5000);
        let data = self.text(300, 500);
        write!(
            row,
            "\t{address}\t{phone:016}\t{SINCE}\t{credit}\t5000000\t{discount}\t-1000\t1000\t1\t0\t{data}"
        )
        .expect("a string takes everything");
        row
    }

    fn stock(&mut self, warehouse: i32, item: i32) -> String {
        let quantity = self.random.random_range(10..=100);
        format!("{warehouse}\t{item}\t{quantity}\t{}\t0\t0\t0\t{}", self.text(24, 24), self.text(26, 50))
    }

    /// Fills the orders of a district. The last three tenths of them are not delivered yet.
    async fn orders(&mut self, client: &Client, warehouse: i32, district: i32) -> Result<()> {
        let mut customers: Vec<i32> = (1..=self.size.customers).collect();
        customers.shuffle(&mut self.random);
        let delivered = self.size.customers - self.size.customers * 3 / 10;
        let (mut orders, mut lines, mut new) = (Vec::new(), Vec::new(), Vec::new());
        for (customer, order) in customers.into_iter().zip(1..) {
            let count = self.random.random_range(5..=15);
            let is_new = order > delivered;
            let carrier =
                if is_new { String::from("\\N") } else { self.random.random_range(1..=10).to_string() };
            orders.push(format!(
                "{warehouse}\t{district}\t{order}\t{customer}\t{SINCE}\t{carrier}\t{count}\t1"
            ));
            if is_new {
                new.push(format!("{warehouse}\t{district}\t{order}"));
            }
            for number in 1..=count {
                let item = self.random.random_range(1..=self.size.items);
                let amount = if is_new { self.random.random_range(1..=999_999) } else { 0 };
                let delivery = if is_new { "\\N" } else { SINCE };
                lines.push(format!(
                    "{warehouse}\t{district}\t{order}\t{number}\t{item}\t{warehouse}\t{delivery}\t5\t{amount}\t{}",
                    self.text(24, 24)
                ));
            }
        }
        copy(client, "orders", orders).await?;
        copy(client, "order_line", lines).await?;
        copy(client, "new_order", new).await
    }

    fn text(&mut self, least: usize, most: usize) -> String {
        let length = self.random.random_range(least..=most);
        (0..length).map(|_| char::from(self.random.random_range(b'a'..=b'z'))).collect()
    }
}

/// Draws a number. A few numbers come more often than the others: NURand of clause 2.1.6.
pub(super) fn skewed(random: &mut Pcg64, a: i32, least: i32, most: i32) -> i32 {
    // The specification lets each run choose this constant.
    const C: i32 = 42;
    let or = random.random_range(0..=a) | random.random_range(least..=most);
    (or + C) % (most - least + 1) + least
}

/// Returns the last name of this number, below 1000 (clause 4.3.2.3).
pub(super) fn last_name(number: i32) -> String {
    const SYLLABLES: [&str; 10] =
        ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
    let syllable = |place: i32| SYLLABLES[(number / place % 10) as usize];
    [syllable(100), syllable(10), syllable(1)].concat()
}
