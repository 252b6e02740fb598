//! A board of prices. One feed sets them by soft sends, and any number of readers look at their own copies.
//!
//! ```text
//! quorate up                        # or any cluster; it prints the addresses of its routers
//! cargo run --release -p quorate --example prices -- --routers 127.0.0.1:24701 feed 1000
//! cargo run --release -p quorate --example prices -- --routers 127.0.0.1:24701 read ACME
//! ```
//!
//! A price mirrors what an exchange knows, and the next price replaces it. So soft sends, which are the
//! cheapest sends, are enough. Once a second the feed flushes and then prints its count. The prices that it
//! has counted survive its end.

use std::{
    collections::BTreeMap,
    env, process, thread,
    time::{Duration, Instant},
};

use quorate::{
    Error, Node, Wait,
    group::{Answer, Corrupt, Member, Origin, Replica, Share, Snapshot, Want},
};

#[derive(Default)]
struct Prices(BTreeMap<String, i64>);

impl Replica for Prices {
    const NAME: &'static str = "prices/1";
    type Update = (String, i64);
    type Query = String;
    type Reply = Option<i64>;

    fn apply(&mut self, (symbol, cents): (String, i64), _: &Origin) {
        self.0.insert(symbol, cents);
    }

    fn query(&self, symbol: String, _: Share) -> Answer<Option<i64>> {
        Answer::Now(self.0.get(&symbol).copied())
    }

    fn checkpoint(&self) -> Snapshot {
        Snapshot::later(self.0.clone())
    }

    fn restore(snapshot: &Snapshot) -> Result<Self, Corrupt> {
        snapshot.read().map(Prices)
    }
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["--routers", routers, "feed", rate] if rate.parse::<u32>().is_ok_and(|rate| rate > 0) => {
            join(routers).and_then(|prices| feed(&prices, rate.parse().expect("looked at above")))
        }
        ["--routers", routers, "read", symbol] => join(routers).and_then(|prices| read(&prices, symbol)),
        _ => {
            eprintln!("usage: prices --routers ADDRESSES (feed PRICES_PER_SECOND | read SYMBOL)");
            process::exit(2);
        }
    };
    if let Err(error) = outcome {
        eprintln!("{error}");
        process::exit(1);
    }
}

fn join(routers: &str) -> Result<Member<Prices>, Error> {
    let node = Node::builder().routers(routers.split(',')).start().wait()?;
    node.group("prices").join(Prices::default()).wait()
}

/// Sets `rate` prices a second, until the program is stopped.
fn feed(prices: &Member<Prices>, rate: u32) -> Result<(), Error> {
    let (symbols, began) = (["ACME", "INIT", "WIDG"], Instant::now());
    for number in 0u32.. {
        let symbol = symbols[number as usize % symbols.len()];
        // The send goes on although its future is dropped. Only the report of a refusal is lost.
        drop(prices.send((symbol.to_owned(), 9_000 + i64::from(number % 500))));
        if number % rate == rate - 1 {
            prices.flush().wait()?;
            println!("{} prices, the last ones durable", number + 1);
        }
        let due = began + Duration::from_secs(1) * number / rate;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// Looks at this member's copy twice a second, and asks all other members every tenth time.
fn read(prices: &Member<Prices>, symbol: &str) -> Result<(), Error> {
    for number in 0u64.. {
        match prices.read(|prices| prices.0.get(symbol).copied()) {
            Ok(price) => println!("{symbol}: {price:?}"),
            // The process gets in touch again, or the next read ends in a permanent error.
            Err(Error::OutOfTouch) => println!("{symbol}: out of touch, what is here may be old"),
            Err(error) => return Err(error),
        }
        if number % 10 == 9 {
            let answer =
                prices.query(symbol.to_owned(), Want::All).deadline(Duration::from_millis(50)).wait()?;
            let others: Vec<_> = answer.replies.iter().map(|replied| replied.reply).collect();
            println!("{symbol} at all: {others:?}, {} did not say", answer.missing.len());
        }
        thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}
