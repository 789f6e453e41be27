//! Tampering with the real database shows, wherever the history lives; and an honest history never
//! looks tampered with, whatever it went through.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::sync::Arc;

use lease::{
    Acquire, Acquired, Authority, Holder, Key, Revision, Ttl, Want,
    history::{Digest, What},
};
use leasehold_store::{
    embedded::{Embedded, History, Options},
    postgres::{Options as PostgresOptions, Postgres},
    redis::Redis,
};
use leasehold_testkit::{Postgres as Server, redis::Redis as RedisServer};

use crate::embedded_kit::{self, crash_image, manual, open};
use crate::seal_kit::{self, audit, broken, check_head, live, revisions, sealed, sound};

/// A change by hand, and what must be said about it: the first break.
type Tampering<'a> = (&'a str, String, Revision, What);

#[tokio::test]
async fn tampering_with_the_file_of_the_embedded_store_shows() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &manual()).await.unwrap();
    live(&store, 12).await;
    sound(&store).await;
    let at = revisions(&store).await;
    let (first, middle, last) = (at[0], at[9], *at.last().unwrap());
    // One of four keys is taken and given back at a time.
    let earlier = at[9 - 8];
    let next = middle.next();
    let beyond = last.next();
    let tampering: [Tampering<'_>; 9] = [
        (
            "earlier contents of the same key",
            format!(
                "UPDATE events SET (sum, data) = (SELECT sum, data FROM events WHERE last = {earlier}) WHERE last = {middle}"
            ),
            middle,
            What::Changed,
        ),
        (
            "another's contents",
            format!(
                "UPDATE events SET (sum, data) = (SELECT sum, data FROM events WHERE last = {next}) WHERE last = {middle}"
            ),
            middle,
            What::Changed,
        ),
        (
            "removed",
            format!("DELETE FROM events WHERE last = {middle}"),
            middle,
            What::Missing,
        ),
        (
            "the first removed",
            format!("DELETE FROM events WHERE last = {first}"),
            first,
            What::Missing,
        ),
        (
            "swapped",
            format!(
                "UPDATE events SET last = -1 WHERE last = {middle}; UPDATE events SET last = {middle}, first = {middle} WHERE last = {next}; UPDATE events SET last = {next}, first = {next} WHERE last = -1"
            ),
            middle,
            What::Changed,
        ),
        (
            "inserted",
            format!(
                "INSERT INTO events SELECT {beyond}, {beyond}, at, sum, data FROM events WHERE last = {middle}"
            ),
            beyond,
            What::Inserted,
        ),
        (
            "cut off with its seals",
            format!(
                "DELETE FROM events WHERE last >= {middle}; DELETE FROM seals WHERE last >= {middle}"
            ),
            middle,
            What::Missing,
        ),
        (
            "a seal changed",
            format!("UPDATE seals SET marks = zeroblob(length(marks)) WHERE first = {middle}"),
            middle,
            What::Seal,
        ),
        (
            "a seal removed",
            format!("DELETE FROM seals WHERE first = {middle}"),
            middle,
            What::Unsealed(middle),
        ),
    ];
    for (how, sql, revision, what) in tampering {
        let image = crash_image(dir.path());
        let store = open(image.path(), &manual()).await.unwrap();
        sound(&store).await;
        let file = rusqlite::Connection::open(image.path().join("leasehold.db")).unwrap();
        file.execute_batch(&sql).unwrap();
        assert_eq!(broken(&store, None).await, (revision, what), "{how}");
    }
    // Bytes that cannot be read are named too, not passed over.
    let image = crash_image(dir.path());
    let store = open(image.path(), &manual()).await.unwrap();
    let file = rusqlite::Connection::open(image.path().join("leasehold.db")).unwrap();
    let spoil = format!("UPDATE events SET data = zeroblob(20) WHERE last = {middle}");
    file.execute_batch(&spoil).unwrap();
    assert!(matches!(broken(&store, None).await.1, What::Unreadable(_)));
}

#[tokio::test]
async fn one_key_is_checked_on_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &manual()).await.unwrap();
    live(&store, 12).await;
    let at = revisions(&store).await;
    let file = rusqlite::Connection::open(dir.path().join("leasehold.db")).unwrap();
    let revision = at[9];
    let query = lease::EventQuery {
        after: Revision::new(revision.get() - 1),
        limit: 1,
        ..lease::EventQuery::default()
    };
    let key = store.events(query).await.unwrap().events[0].key.to_string();
    let other = if key == "job:k0" { "job:k1" } else { "job:k0" };
    file.execute("DELETE FROM events WHERE last = ?1", [revision.get()])
        .unwrap();
    assert_eq!(broken(&store, Some(&key)).await, (revision, What::Missing));
    assert_eq!(
        audit(&store, Some(other)).await.breaks,
        [],
        "another key's history is whole"
    );
}

/// Whoever rewrites everything, seals included, is found out by a head that was noted elsewhere.
#[tokio::test]
async fn a_noted_head_pins_everything_before_it() {
    let store = embedded_kit::memory(&manual());
    live(&store, 5).await;
    let head = audit(&store, None).await.head.unwrap();
    live(&store, 5).await;
    assert_eq!(check_head(&store, head).await.breaks, []);
    let later = manual();
    later.advance(1);
    let rewritten = embedded_kit::memory(&later);
    live(&rewritten, 11).await;
    sound(&rewritten).await;
    let found = check_head(&rewritten, head).await.breaks;
    assert_eq!(
        (found[0].revision, &found[0].what),
        (head.0, &What::OtherHead)
    );
}

#[tokio::test]
async fn an_honest_embedded_history_is_sound_after_retention_restart_and_crash() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let options = Options {
        history: History {
            max_events: 40,
            ..History::default()
        },
        ..Options::at(dir.path())
    };
    let store = Embedded::open(options.clone(), Arc::new(clock.clone()))
        .await
        .unwrap();
    live(&store, 60).await;
    sound(&store).await;
    let page = store.seals(Revision::ZERO, 10).await.unwrap();
    assert!(page.from > Revision::new(1), "the beginning was forgotten");
    assert_ne!(page.seals[0].previous, Digest::ZERO, "and left its anchor");
    store.close().await.unwrap();
    let store = Embedded::open(options.clone(), Arc::new(clock.clone()))
        .await
        .unwrap();
    live(&store, 20).await;
    sound(&store).await;
    let image = crash_image(dir.path());
    let options = Options {
        dir: image.path().to_owned(),
        ..options
    };
    let store = Embedded::open(options, Arc::new(clock)).await.unwrap();
    live(&store, 20).await;
    sound(&store).await;
}

/// A store that was written before there were seals gets them when it is opened.
#[tokio::test]
async fn an_older_store_is_sealed_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &manual()).await.unwrap();
    live(&store, 10).await;
    store.close().await.unwrap();
    let file = rusqlite::Connection::open(dir.path().join("leasehold.db")).unwrap();
    file.execute_batch("DROP TABLE seals").unwrap();
    drop(file);
    let store = open(dir.path(), &manual()).await.unwrap();
    live(&store, 3).await;
    let audit = audit(&store, None).await;
    assert_eq!((audit.breaks, audit.unsealed), (vec![], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tampering_with_postgresql_shows() {
    let database = Server::shared().await;
    let options: PostgresOptions = database.url().parse().unwrap();
    let store = Postgres::open(options).await.unwrap();
    live(&store, 12).await;
    sealed(&store).await;
    let at = revisions(&store).await;
    let (first, middle, last) = (at[0], at[9], *at.last().unwrap());
    // From here on nothing is sealed: a replica without housekeeping looks at what is there.
    drop(store);
    seal_kit::until("the leadership is given up", async || {
        let held =
            "SELECT count(*) FROM leases WHERE key = 'leadership:expiry' AND status = 'active'";
        database.psql(held).await == "0"
    })
    .await;
    database.psql("CREATE TABLE events_before AS SELECT revision, event_id, lease_id, event_type, at_ms, key, token, runner_id, incarnation, expires_ms, labels, details FROM lease_events; CREATE TABLE seals_before AS TABLE lease_seals").await;
    let mut options: PostgresOptions = database.url().parse().unwrap();
    options.housekeeping = false;
    let store = Postgres::open(options).await.unwrap();
    let columns = "revision, event_id, lease_id, event_type, at_ms, key, token, runner_id, incarnation, expires_ms, labels, details";
    let (next, beyond) = (middle.next(), last.next().next());
    let sealed_from = store.seals(Revision::ZERO, 1).await.unwrap().seals[0].first;
    let tampering: [Tampering<'_>; 8] = [
        (
            "changed",
            format!("UPDATE lease_events SET runner_id = 'eve' WHERE revision = {middle}"),
            middle,
            What::Changed,
        ),
        (
            "backdated",
            format!("UPDATE lease_events SET at_ms = at_ms - 1 WHERE revision = {middle}"),
            middle,
            What::Changed,
        ),
        (
            "removed",
            format!("DELETE FROM lease_events WHERE revision = {middle}"),
            middle,
            What::Missing,
        ),
        (
            "the first removed",
            format!("DELETE FROM lease_events WHERE revision = {first}"),
            first,
            What::Missing,
        ),
        (
            "swapped",
            format!(
                "UPDATE lease_events SET revision = -1 WHERE revision = {middle}; UPDATE lease_events SET revision = {middle} WHERE revision = {next}; UPDATE lease_events SET revision = {next} WHERE revision = -1"
            ),
            middle,
            What::Changed,
        ),
        (
            "inserted",
            format!(
                "INSERT INTO lease_events ({columns}) SELECT {beyond}, gen_random_uuid(), lease_id, event_type, at_ms, key, token, runner_id, incarnation, expires_ms, labels, details FROM lease_events WHERE revision = {middle}"
            ),
            beyond,
            What::Inserted,
        ),
        (
            "cut off",
            format!("DELETE FROM lease_events WHERE revision >= {middle}"),
            middle,
            What::Missing,
        ),
        (
            "a seal changed",
            "UPDATE lease_seals SET marks = set_byte(marks, 0, get_byte(marks, 0) # 1)".into(),
            sealed_from,
            What::Seal,
        ),
    ];
    for (how, sql, revision, what) in tampering {
        database.psql(&sql).await;
        assert_eq!(broken(&store, None).await, (revision, what), "{how}");
        database.psql(&format!("TRUNCATE lease_events, lease_seals; INSERT INTO lease_events ({columns}) SELECT {columns} FROM events_before; INSERT INTO lease_seals SELECT * FROM seals_before")).await;
    }
    let found = audit(&store, None).await.breaks;
    assert_eq!(found, [], "put back, it is sound again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_history_on_postgresql_is_sound_after_retention_and_with_replicas() {
    let mut server = Server::start().await;
    let options = || {
        let mut options: PostgresOptions = server.url().parse().unwrap();
        options.history_events = 60;
        options
    };
    let first = Postgres::open(options()).await.unwrap();
    let second = Postgres::open(options()).await.unwrap();
    let ((), ()) = tokio::join!(live(&first, 30), live(&second, 30));
    sealed(&second).await;
    // The replica that seals goes; the other takes over, while a third one comes.
    drop(first);
    let third = Postgres::open(options()).await.unwrap();
    let ((), ()) = tokio::join!(live(&second, 30), live(&third, 30));
    sealed(&third).await;
    let forgotten = async || third.seals(Revision::ZERO, 0).await.unwrap().from > Revision::new(1);
    seal_kit::until("the beginning is forgotten", forgotten).await;
    sound(&third).await;
    // A crash of the database itself.
    drop((second, third));
    server.kill9();
    server.restart().await;
    let mut options: PostgresOptions = server.url().parse().unwrap();
    options.history_events = 60;
    let store = Postgres::open(options).await.unwrap();
    live(&store, 5).await;
    sealed(&store).await;
    sound(&store).await;
}

/// Rewrites the stream of events by hand: Redis has no way to change an entry in place.
async fn rewrite(server: &RedisServer, change: &str) {
    let script = format!(
        "local all = redis.call('XRANGE', 'leasehold:events', '-', '+') \
         local function at(n) for i, e in ipairs(all) do if e[1] == n .. '-0' then return i end end end \
         {change} \
         redis.call('DEL', 'leasehold:events') \
         for _, e in ipairs(all) do redis.call('XADD', 'leasehold:events', e[1], unpack(e[2])) end \
         return #all"
    );
    server.cli(&["EVAL", &script, "0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tampering_with_redis_shows() {
    let server = RedisServer::start().await;
    let store = Redis::open_url(&server.url()).await.unwrap();
    live(&store, 12).await;
    sealed(&store).await;
    let at = revisions(&store).await;
    let (first, middle, last) = (at[0], at[9], *at.last().unwrap());
    let (next, beyond) = (middle.next(), last.next());
    server.cli(&["COPY", "leasehold:events", "before"]).await;
    server
        .cli(&["COPY", "leasehold:seals", "seals-before"])
        .await;
    let tampering: [Tampering<'_>; 6] = [
        (
            "changed",
            format!(
                "local e = all[at('{middle}')][2] for i = 1, #e, 2 do if e[i] == 'holder' then e[i + 1] = 'eve' end end"
            ),
            middle,
            What::Changed,
        ),
        (
            "swapped",
            format!(
                "local a, b = at('{middle}'), at('{next}') all[a][2], all[b][2] = all[b][2], all[a][2]"
            ),
            middle,
            What::Changed,
        ),
        (
            "inserted twice",
            format!("table.insert(all, at('{next}'), {{'{middle}-1', all[at('{middle}')][2]}})"),
            middle,
            What::Inserted,
        ),
        (
            "inserted at the end",
            format!("all[#all + 1] = {{'{beyond}-0', all[1][2]}}"),
            beyond,
            What::Inserted,
        ),
        (
            "cut off",
            format!("while all[#all][1] ~= '{middle}-0' do all[#all] = nil end all[#all] = nil"),
            middle,
            What::Missing,
        ),
        (
            "all removed but the last",
            "all = {all[#all]}".into(),
            first,
            What::Missing,
        ),
    ];
    for (how, change, revision, what) in tampering {
        rewrite(&server, &change).await;
        assert_eq!(broken(&store, None).await, (revision, what), "{how}");
        server
            .cli(&["COPY", "before", "leasehold:events", "REPLACE"])
            .await;
    }
    for gone in [first, middle] {
        let id = format!("{gone}-0");
        server.cli(&["XDEL", "leasehold:events", &id]).await;
        assert_eq!(broken(&store, None).await, (gone, What::Missing));
        server
            .cli(&["COPY", "before", "leasehold:events", "REPLACE"])
            .await;
    }
    let page = store.seals(Revision::ZERO, 10).await.unwrap();
    let seal = &page.seals[0];
    server
        .cli(&["XDEL", "leasehold:seals", &format!("{}-0", seal.last)])
        .await;
    // What is left says that something is missing: a hole before the next seal, once there is one.
    live(&store, 3).await;
    let hole = async || {
        let found = audit(&store, None).await.breaks;
        found
            .first()
            .is_some_and(|it| matches!(it.what, What::Unsealed(_)))
    };
    seal_kit::until("the hole shows", hole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_history_on_redis_is_sound_after_retention_restart_and_with_replicas() {
    let mut server = RedisServer::options().persistent().start().await;
    let open = async |url: String| {
        let mut options = leasehold_store::redis::Options::parse(&url).unwrap();
        // The stream forgets a hundred entries at a time.
        options.history = 150;
        Redis::open(options).await.unwrap()
    };
    let first = open(server.url()).await;
    let second = open(server.url()).await;
    let ((), ()) = tokio::join!(live(&first, 60), live(&second, 60));
    sealed(&second).await;
    drop(first);
    let third = open(server.url()).await;
    let ((), ()) = tokio::join!(live(&second, 150), live(&third, 150));
    sealed(&third).await;
    let page = third.seals(Revision::ZERO, 1).await.unwrap();
    assert_ne!(
        page.seals[0].previous,
        Digest::ZERO,
        "the beginning left its anchor"
    );
    sound(&third).await;
    drop((second, third));
    server.stop().await;
    server.restart().await;
    let store = open(server.url()).await;
    live(&store, 5).await;
    sealed(&store).await;
    sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_come_together_are_sealed_together_on_redis() {
    let server = RedisServer::start().await;
    let store = Redis::open_url(&server.url()).await.unwrap();
    let keys = (0..Acquire::MAX_KEYS).map(|number| Key::new("job", &format!("k{number}")).unwrap());
    let holder = Holder::new("ann", "1").unwrap();
    let all = Acquire::of(
        Want::All(keys.collect()),
        holder,
        Ttl::from_secs(60).unwrap(),
    );
    let granted = store.acquire(all).await.unwrap();
    assert!(matches!(granted, Acquired::Granted { .. }));
    sealed(&store).await;
    let page = store.seals(Revision::ZERO, 100).await.unwrap();
    let covered = page
        .seals
        .iter()
        .map(|seal| seal.last.get() - seal.first.get() + 1);
    let most = covered.max().unwrap();
    assert!(most >= Acquire::MAX_KEYS as u64, "{most}");
    sound(&store).await;
}
