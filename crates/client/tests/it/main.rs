//! The client against the real store, the real server and a bad network.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod conformance;
mod documents;
mod examples;
mod faulty;
mod grace;
mod keeping;
mod losing;
mod pages;
mod planted;
mod presence;
mod property;
mod releasing;
mod remote;
mod served;
mod several;
mod stream;
mod world;
