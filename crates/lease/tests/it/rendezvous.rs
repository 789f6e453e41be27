//! Assignment: the vectors that other languages share, evenness, and how little moves.

use std::collections::{BTreeMap, HashMap};

use lease::rendezvous::{Node, assign, cost, hash};
use proptest::prelude::*;
use serde_json::Value;

fn everyone(_: usize, _: usize) -> bool {
    true
}

fn equal(names: &[String]) -> Vec<Node<'_>> {
    names.iter().map(|name| Node::equal(name)).collect()
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("{prefix}-{n}")).collect()
}

fn as_strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn load(owners: &[Option<usize>], nodes: usize) -> Vec<usize> {
    let mut load = vec![0; nodes];
    for owner in owners.iter().flatten() {
        load[*owner] += 1;
    }
    load
}

#[test]
fn vectors_shared_with_other_languages() {
    let vectors: Value = serde_json::from_str(include_str!("../vectors/rendezvous.json")).unwrap();
    let list = |name: &str| vectors[name].as_array().unwrap().clone();
    for it in list("hashes") {
        let got = hash(it["node"].as_str().unwrap(), it["target"].as_str().unwrap());
        assert_eq!(format!("{got:016x}"), it["hash"].as_str().unwrap(), "{it}");
    }
    for it in list("costs") {
        let node = Node {
            name: it["node"].as_str().unwrap(),
            weight: u32::try_from(it["weight"].as_u64().unwrap()).unwrap(),
            capacity: None,
        };
        let got = cost(&node, it["target"].as_str().unwrap());
        assert_eq!(got.to_string(), it["cost"].as_str().unwrap(), "{it}");
    }
    for it in list("assignments") {
        let nodes: Vec<Node<'_>> = it["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| Node {
                name: node["name"].as_str().unwrap(),
                weight: u32::try_from(node["weight"].as_u64().unwrap()).unwrap(),
                capacity: node["capacity"].as_u64().map(|c| u32::try_from(c).unwrap()),
            })
            .collect();
        let targets: Vec<&str> = it["targets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|target| target.as_str().unwrap())
            .collect();
        let owners = assign(&nodes, &targets, everyone);
        for (target, owner) in targets.iter().zip(owners) {
            let expected = it["owners"][target].as_str();
            assert_eq!(
                owner.map(|o| nodes[o].name),
                expected,
                "{}: {target}",
                it["name"]
            );
        }
    }
}

#[test]
fn nine_targets_on_three_nodes_are_three_each() {
    let nodes = names("node", 3);
    let targets = names("session", 9);
    let owners = assign(&equal(&nodes), &as_strs(&targets), everyone);
    assert_eq!(load(&owners, 3), [3, 3, 3]);
}

#[test]
fn a_third_node_gets_three_or_four_of_ten_and_little_else_moves() {
    let nodes = names("node", 3);
    let targets = names("session", 10);
    let before = assign(&equal(&nodes[..2]), &as_strs(&targets), everyone);
    let after = assign(&equal(&nodes), &as_strs(&targets), everyone);
    assert!((3..=4).contains(&load(&after, 3)[2]));
    let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert!(moved <= 5, "{moved} of 10 moved");
}

#[test]
fn movement_stays_near_the_minimum() {
    let targets = names("target", 1000);
    for nodes in 2..20 {
        let names = names("node", nodes + 1);
        let before = assign(&equal(&names[..nodes]), &as_strs(&targets), everyone);
        let after = assign(&equal(&names), &as_strs(&targets), everyone);
        let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        // What the newcomer must get, and as much again for the bound at most.
        assert!(
            moved <= 2 * 1000 / (nodes + 1) + 2,
            "{nodes} nodes: {moved} moved"
        );
    }
}

#[test]
fn only_eligible_nodes_get_a_target() {
    let nodes = names("node", 4);
    let targets = names("camera", 40);
    // Even targets only on the first two nodes.
    let may = |target: usize, node: usize| target % 2 == 1 || node < 2;
    let owners = assign(&equal(&nodes), &as_strs(&targets), may);
    for (target, owner) in owners.iter().enumerate() {
        assert!(may(target, owner.expect("there is room for all")));
    }
}

proptest! {
    #[test]
    fn everyone_is_within_one_of_the_ideal_and_order_does_not_matter(
        weights in prop::collection::vec(1_u32..20, 1..12),
        count in 0_usize..300,
    ) {
        let names = names("n", weights.len());
        let targets = names_of_targets(count);
        let nodes: Vec<Node<'_>> = names.iter().zip(&weights)
            .map(|(name, &weight)| Node { name, weight, capacity: None }).collect();
        let owners = assign(&nodes, &as_strs(&targets), everyone);
        prop_assert!(owners.iter().all(Option::is_some));
        let total: u32 = weights.iter().sum();
        for (load, weight) in load(&owners, nodes.len()).into_iter().zip(&weights) {
            let ideal = count as f64 * f64::from(*weight) / f64::from(total);
            prop_assert!((load as f64 - ideal).abs() <= 1.0, "{} for {}", load, ideal);
        }
        let by_name: BTreeMap<&str, &str> = targets.iter().zip(&owners)
            .map(|(target, owner)| (target.as_str(), nodes[owner.unwrap()].name)).collect();
        let reversed_nodes: Vec<_> = nodes.iter().rev().cloned().collect();
        let reversed: Vec<&str> = as_strs(&targets).into_iter().rev().collect();
        let again: HashMap<&str, &str> = reversed.iter()
            .zip(assign(&reversed_nodes, &reversed, everyone))
            .map(|(target, owner)| (*target, reversed_nodes[owner.unwrap()].name)).collect();
        for (target, owner) in by_name {
            prop_assert_eq!(again[target], owner);
        }
    }

    #[test]
    fn capacity_is_never_exceeded_and_never_wasted(
        capacities in prop::collection::vec(0_u32..12, 1..8),
        count in 0_usize..60,
    ) {
        let names = names("n", capacities.len());
        let targets = names_of_targets(count);
        let nodes: Vec<Node<'_>> = names.iter().zip(&capacities)
            .map(|(name, &capacity)| Node { name, weight: capacity.max(1), capacity: Some(capacity) })
            .collect();
        let owners = assign(&nodes, &as_strs(&targets), everyone);
        for (load, capacity) in load(&owners, nodes.len()).into_iter().zip(&capacities) {
            prop_assert!(load <= *capacity as usize);
        }
        let room: u32 = capacities.iter().sum();
        prop_assert_eq!(owners.iter().flatten().count(), count.min(room as usize));
    }
}

fn names_of_targets(count: usize) -> Vec<String> {
    names("target", count)
}
