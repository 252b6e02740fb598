//! Tests columns that take numbers from sequences, as drivers use them.

use bytes::Bytes;
use futures_util::{SinkExt, pin_mut};

use super::Gateway;

#[tokio::test]
async fn a_driver_gets_the_serial_numbers_of_its_rows() {
    let gateway = Gateway::start().await;
    let (client, other) = (gateway.connect().await, gateway.connect().await);
    client.batch_execute("create table t (id bigserial primary key, v text)").await.unwrap();
    let insert = client.prepare("insert into t (v) values ($1), ($2) returning id").await.unwrap();
    for turn in 0..50i64 {
        let rows = client.query(&insert, &[&"a", &"b"]).await.unwrap();
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(ids, [2 * turn + 1, 2 * turn + 2], "an execution draws its own numbers");
    }
    let next = other.query_one("select nextval($1)", &[&"t_id_seq"]).await.unwrap();
    assert_eq!(next.get::<_, i64>(0), 101, "sessions of a gateway share its numbers");
    let last = client.query_one("select lastval(), currval('t_id_seq'::regclass)", &[]).await.unwrap();
    assert_eq!((last.get::<_, i64>(0), last.get::<_, i64>(1)), (100, 100));
    let sink = client.copy_in("copy t (v) from stdin").await.unwrap();
    pin_mut!(sink);
    sink.send(Bytes::from_static(b"x\ny\nz\n")).await.unwrap();
    assert_eq!(sink.finish().await.unwrap(), 3);
    let copied = client.query("select id from t where v >= 'x' order by id", &[]).await.unwrap();
    assert_eq!(copied.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [102, 103, 104]);
    let set = client.query_one("select setval('t_id_seq', $1)", &[&500i64]).await.unwrap();
    assert_eq!(set.get::<_, i64>(0), 500);
    let row = client.query_one("insert into t (v) values ('c') returning id", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 501);
}
