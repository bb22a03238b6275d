//! The transactions that a client commits, and the rows that a database holds after the first n.
//!
//! A transaction changes both tables in the same way: it inserts a row, updates the client's
//! counter, and sometimes deletes an older row. So the rows after n transactions are a function of
//! n, and n is in the counter: a database that holds half a transaction, or a row of another one,
//! holds wrong rows.

use anyhow::{Context, Result, ensure};
use butternut_sim::random::{Random, mix};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

pub(crate) const TABLES: [&str; 2] = ["a", "b"];

/// Row ids of a client: its number times this, plus the number of the transaction. Row 0 is the
/// counter.
const IDS_PER_CLIENT: u64 = 1_000_000;
/// Of so many transactions, one deletes the row of one that is older by `DELETED_AGE`.
const DELETING: u64 = 3;
const DELETED_AGE: u64 = 20;

/// The rows of both tables, by table and id.
pub(crate) type Rows = BTreeMap<(String, u64), String>;

/// The last transaction of each client that was acknowledged, by client.
pub(crate) type Acknowledged = Vec<u64>;

/// One transaction of a client.
pub(crate) struct Transaction {
    pub(crate) id: u64,
    pub(crate) body: String,
    pub(crate) counter: u64,
    pub(crate) count: u64,
    pub(crate) deleted: Option<u64>,
}

/// Returns transaction `number` of a client; the first is 1.
pub(crate) fn transaction(client: usize, number: u64) -> Transaction {
    let first = client as u64 * IDS_PER_CLIENT;
    let deleted = number.is_multiple_of(DELETING) && number > DELETED_AGE;
    Transaction {
        id: first + number,
        body: body(first + number),
        counter: first,
        count: number,
        deleted: deleted.then(|| first + number - DELETED_AGE),
    }
}

/// Returns text that is longer than a page for some rows, so that databases store it apart.
fn body(id: u64) -> String {
    let mut random = Random::new(mix(id));
    let words = if random.one_in(12) { 200 + random.below(1500) } else { 1 + random.below(40) };
    let mut text = String::new();
    for _ in 0..words {
        write!(text, "{:016x}", random.number()).ok();
    }
    text
}

/// Returns the SQL of a client's transactions; `done` is the text after each, given its number.
pub(crate) fn sql(client: usize, count: u64, done: impl Fn(u64) -> String) -> String {
    let mut text = String::new();
    for number in 1..=count {
        let Transaction { id, body, counter, count, deleted } = transaction(client, number);
        text.push_str("BEGIN;\n");
        for table in TABLES {
            writeln!(text, "INSERT INTO {table} VALUES({id}, '{body}');").ok();
            writeln!(text, "UPDATE {table} SET body = '{count}' WHERE id = {counter};").ok();
            if let Some(deleted) = deleted {
                writeln!(text, "DELETE FROM {table} WHERE id = {deleted};").ok();
            }
        }
        write!(text, "COMMIT;\n{}\n", done(number)).ok();
    }
    text
}

/// Returns the SQL that creates the tables, with the counters of the clients.
pub(crate) fn create_sql(clients: usize) -> String {
    let mut text = String::new();
    for table in TABLES {
        writeln!(text, "CREATE TABLE {table}(id BIGINT PRIMARY KEY, body TEXT);").ok();
        writeln!(text, "CREATE INDEX {table}_body ON {table}(substr(body, 1, 30));").ok();
        for client in 0..clients {
            let counter = transaction(client, 0).counter;
            writeln!(text, "INSERT INTO {table} VALUES({counter}, '0');").ok();
        }
    }
    text
}

/// The SQL that prints all rows as [`parse`] reads them.
pub(crate) const DUMP_SQL: &str = "SELECT 'a', id, body FROM a; SELECT 'b', id, body FROM b;";

/// Parses lines "table|id|body"; other lines are ignored.
pub(crate) fn parse(printed: &str) -> Result<Rows> {
    let mut rows = Rows::new();
    for line in printed.lines() {
        let mut words = line.split('|');
        if let (Some(table), Some(id), Some(body)) = (words.next(), words.next(), words.next()) {
            let key = (table.to_owned(), id.parse().with_context(|| line.to_owned())?);
            ensure!(rows.insert(key, body.to_owned()).is_none(), "twice: {table} {id}");
        }
    }
    Ok(rows)
}

/// Reads the last acknowledged transaction from lines "committed NUMBER" that a client has printed.
/// An incomplete last line does not count.
pub(crate) fn acknowledged(printed: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(printed).context("the acknowledged transactions")?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let number = |line: &str| line.strip_prefix("committed ")?.parse().ok();
    Ok(whole.lines().filter_map(number).max().unwrap_or(0))
}

/// Compares the rows with those after the transactions that the counters name. `lost_max` is the
/// number of acknowledged transactions of each client that may be missing.
pub(crate) fn verify(rows: &Rows, acknowledged: &[u64], lost_max: u64) -> Result<Acknowledged> {
    let mut wanted = Rows::new();
    let mut found = Acknowledged::new();
    for (client, acknowledged) in acknowledged.iter().enumerate() {
        let counter = transaction(client, 0).counter;
        let count = rows.get(&(TABLES[0].to_owned(), counter)).context("there is no counter")?;
        let count: u64 = count.parse().with_context(|| format!("the counter is {count}"))?;
        ensure!(
            count + lost_max >= *acknowledged,
            "client {client}: {acknowledged} transactions were acknowledged, {count} are there"
        );
        rows_after(client, count, &mut wanted);
        found.push(count);
    }
    for (key, body) in &wanted {
        let have = rows.get(key).with_context(|| format!("{key:?} is missing, of {found:?}"))?;
        ensure!(have == body, "{key:?}: {} bytes {have:.60}, want {body:.60}", have.len());
    }
    let more = rows.keys().find(|key| !wanted.contains_key(*key));
    ensure!(more.is_none(), "{more:?} is there, of {found:?}");
    Ok(found)
}

fn rows_after(client: usize, count: u64, rows: &mut Rows) {
    for table in TABLES {
        let counter = transaction(client, 0).counter;
        rows.insert((table.to_owned(), counter), count.to_string());
        for number in 1..=count {
            let Transaction { id, body, deleted, .. } = transaction(client, number);
            rows.insert((table.to_owned(), id), body);
            if let Some(deleted) = deleted {
                rows.remove(&(table.to_owned(), deleted));
            }
        }
    }
}
