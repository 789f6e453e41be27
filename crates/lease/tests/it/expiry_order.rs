//! The order in which leases expire is the same on every store.

use lease::{
    Acquire, Command, Engine, Holder, Key, Ttl, UnixMillis,
    engine::{Effects, Options},
};

#[test]
fn l12_what_lapsed_first_expires_first_and_ties_go_by_key() {
    let mut engine = Engine::new(Options::default());
    let mut effects = Effects::default();
    let holder = Holder::new("ann", "1").unwrap();
    for (key, ttl_ms) in [("k:c", 20), ("k:a", 20), ("k:d", 10), ("k:b", 20)] {
        let key: Key = key.parse().unwrap();
        let ttl = Ttl::from_millis(ttl_ms).unwrap();
        let request = Acquire::one(key, holder.clone(), ttl);
        engine
            .apply(
                UnixMillis::new(1_000),
                Command::Acquire(request),
                &mut effects,
            )
            .unwrap();
    }
    effects.clear();
    engine.tick(UnixMillis::new(2_000), &mut effects);
    let order: Vec<&str> = effects.events.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(order, ["k:d", "k:a", "k:b", "k:c"]);
}
