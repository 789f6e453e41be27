//! How long tests take is asked for by name.

use leasehold_testkit::length::{Length, pick_or};

#[test]
fn a_length_has_a_name_and_decides() {
    assert_eq!("".parse(), Ok(Length::Normal));
    assert_eq!("normal".parse(), Ok(Length::Normal));
    assert_eq!("soak".parse(), Ok(Length::Soak));
    let unknown = "quick".parse::<Length>();
    assert!(unknown.is_err_and(|why| why.contains("quick")));
    assert_eq!((Length::Normal.pick(1, 2), Length::Soak.pick(1, 2)), (1, 2));
}

#[test]
fn a_variable_decides_for_one_scenario() {
    // A variable that every test has: cargo sets it to the number of the version.
    assert_eq!(pick_or("CARGO_PKG_VERSION_MINOR", 70, 80), 1);
    assert_ne!(pick_or("LEASEHOLD_TEST_OF_NOTHING", 70, 80), 1);
}
