//! Who should have what: weighted rendezvous hashing with a bound, so that every instance computes
//! the same even split without talking to another.
//!
//! All arithmetic is on integers, so that other languages get the same answers: the vectors in
//! `tests/vectors/rendezvous.json` are checked here and can be checked anywhere.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet},
    sync::Arc,
};

/// Something that can be given work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node<'a> {
    /// Its name; names must differ.
    pub name: &'a str,
    /// Its share relative to the others. Zero takes no new work.
    pub weight: u32,
    /// The most it may have, whatever its share.
    pub capacity: Option<u32>,
}

impl<'a> Node<'a> {
    /// A node like any other.
    pub fn equal(name: &'a str) -> Self {
        Self {
            name,
            weight: 1,
            capacity: None,
        }
    }
}

/// FNV-1a, 64 bits.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Spreads every input bit over the whole word. Plain FNV-1a leaves the last bytes in the low bits,
/// and then nine targets can land on one of three nodes.
pub fn finalise(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The hash of one node and one target. The separator occurs in no UTF-8 text, so that `ab`+`c` and
/// `a`+`bc` differ.
pub fn hash(node: &str, target: &str) -> u64 {
    let separator = std::iter::once(0xff);
    finalise(fnv1a(node.bytes().chain(separator).chain(target.bytes())))
}

/// How little a node wants a target: the smallest cost wins. Equal weights give the order of the
/// hashes; in general a node wins in proportion to its weight.
///
/// It is `-log2(hash / 2^64) / weight`, with 32 binary places of the logarithm and 16 more for the
/// division. `u64::MAX` for weight zero.
pub fn cost(node: &Node<'_>, target: &str) -> u64 {
    if node.weight == 0 {
        return u64::MAX;
    }
    let scaled = u128::from(negative_log2(hash(node.name, target))) << 16;
    u64::try_from(scaled / u128::from(node.weight)).unwrap_or(u64::MAX - 1)
}

/// `-log2((x + 1) / 2^64)` with 32 binary places, by repeated squaring: exact to the last place in
/// every language that has 128-bit products.
fn negative_log2(x: u64) -> u64 {
    let Some(x) = x.checked_add(1) else { return 0 };
    let leading = u64::from(x.leading_zeros());
    // 1.0 ≤ mantissa < 2.0, with 63 binary places.
    let mut mantissa = x << leading;
    let mut fraction = 0_u64;
    for _ in 0..32 {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        fraction <<= 1;
        if square >> 64 == 0 {
            mantissa = square as u64;
        } else {
            mantissa = (square >> 1) as u64;
            fraction |= 1;
        }
    }
    let log2 = ((63 - leading) << 32) | fraction;
    (64 << 32) - log2
}

/// The node that wants one target most, without any bound.
pub fn preferred<'n>(nodes: &'n [Node<'n>], target: &str) -> Option<&'n Node<'n>> {
    nodes
        .iter()
        .filter(|node| node.weight > 0)
        .min_by_key(|node| (cost(node, target), node.name))
}

/// Splits `targets` over `nodes`: for each target the index of its node.
///
/// Every node gets its share by weight, within one, and never more than its capacity. A target is
/// left out only when no eligible node has room. Neither the order of the nodes nor that of the
/// targets matters.
pub fn assign(
    nodes: &[Node<'_>],
    targets: &[&str],
    eligible: impl Fn(usize, usize) -> bool,
) -> Vec<Option<usize>> {
    let mut pairs = Vec::with_capacity(nodes.len() * targets.len());
    for (target, name) in targets.iter().enumerate() {
        for (node, it) in nodes.iter().enumerate() {
            if it.weight > 0 && eligible(target, node) {
                pairs.push((cost(it, name), target, node));
            }
        }
    }
    // Ties are broken by names, not by places, so that the caller's order cannot matter.
    pairs.sort_unstable_by(|a, b| {
        a.0.cmp(&b.0)
            .then_with(|| targets[a.1].cmp(targets[b.1]))
            .then_with(|| nodes[a.2].name.cmp(nodes[b.2].name))
    });
    let pairs = pairs.iter().map(|&(_, target, node)| (target, node));
    place(nodes, targets.len(), targets.len(), pairs)
}

/// Gives each of `count` targets, whose places are below `places`, to a node, going by pairs of the
/// two in the order of their costs.
fn place(
    nodes: &[Node<'_>],
    count: usize,
    places: usize,
    pairs: impl Iterator<Item = (usize, usize)> + Clone,
) -> Vec<Option<usize>> {
    let mut assigned = vec![None; places];
    let shares = shares(nodes, count);
    let mut load = vec![0_u64; nodes.len()];
    let mut extra = shares.extra;
    let mut left = count;
    for (target, node) in pairs.clone() {
        if left == 0 {
            break;
        }
        if assigned[target].is_some() {
            continue;
        }
        let room = if load[node] < shares.floor[node] {
            true
        } else if load[node] == shares.floor[node] && extra > 0 && shares.may_exceed[node] {
            extra -= 1;
            true
        } else {
            false
        };
        if room {
            load[node] += 1;
            assigned[target] = Some(node);
            left -= 1;
        }
    }
    // Where not everyone may have everything, shares can be impossible to keep: rather uneven than
    // without an owner.
    for (target, node) in pairs {
        if left == 0 {
            break;
        }
        if assigned[target].is_none() && load[node] < capacity(&nodes[node]) {
            load[node] += 1;
            assigned[target] = Some(node);
            left -= 1;
        }
    }
    assigned
}

/// Splits the same targets over changing nodes again and again: what [`assign`] computes, without
/// computing every cost each time. Where everybody may have everything.
///
/// A cost is computed once per node and target; a node that joins costs one pass over the targets, a
/// target that is added one over the nodes.
#[derive(Default)]
pub struct Ranking {
    slots: HashMap<Arc<str>, u32>,
    /// The name in each slot, if it is taken.
    names: Vec<Option<Arc<str>>>,
    /// Slots that can be taken again.
    free: Vec<u32>,
    /// Slots taken since the last split, and slots given up since.
    added: Vec<u32>,
    removed: Vec<u32>,
    ranks: BTreeMap<String, Rank>,
    costs: u64,
}

/// The targets in the order in which one node wants them.
struct Rank {
    weight: u32,
    order: Vec<(u64, u32)>,
}

/// Who should have what.
#[derive(Clone, Default)]
pub struct Split {
    nodes: Vec<Arc<str>>,
    owners: HashMap<Arc<str>, usize>,
}

impl Split {
    /// Who should have a target.
    pub fn get(&self, target: &str) -> Option<&str> {
        self.owners.get(target).map(|&node| &*self.nodes[node])
    }

    /// How many targets somebody should have.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Whether nobody should have anything.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }
}

impl Ranking {
    /// One more target. Adding it twice does nothing.
    pub fn add(&mut self, target: &str) {
        if self.slots.contains_key(target) {
            return;
        }
        let name: Arc<str> = target.into();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.names.push(None);
            u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX)
        });
        self.names[slot as usize] = Some(name.clone());
        self.slots.insert(name, slot);
        self.added.push(slot);
    }

    /// One target less. Removing what is not there does nothing.
    pub fn remove(&mut self, target: &str) {
        if let Some(slot) = self.slots.remove(target) {
            self.names[slot as usize] = None;
            self.removed.push(slot);
        }
    }

    /// These targets and no others.
    pub fn set<'t>(&mut self, targets: impl IntoIterator<Item = &'t str>) {
        let targets: HashSet<&str> = targets.into_iter().collect();
        let gone: Vec<Arc<str>> = self
            .slots
            .keys()
            .filter(|name| !targets.contains(&***name))
            .cloned()
            .collect();
        for name in gone {
            self.remove(&name);
        }
        for target in targets {
            self.add(target);
        }
    }

    /// Forgets what was computed for other nodes than these.
    pub fn keep_nodes<'n>(&mut self, nodes: impl IntoIterator<Item = &'n str>) {
        let nodes: HashSet<&str> = nodes.into_iter().collect();
        self.ranks.retain(|name, _| nodes.contains(&**name));
    }

    /// How many costs were computed so far: what splitting costs.
    pub fn costs_computed(&self) -> u64 {
        self.costs
    }

    /// Splits the targets over these nodes.
    pub fn split(&mut self, nodes: &[Node<'_>]) -> Split {
        self.settle();
        for node in nodes.iter().filter(|node| node.weight > 0) {
            let known = self.ranks.get(node.name);
            if known.is_none_or(|rank| rank.weight != node.weight) {
                let order = self.order(node, self.slots.values().copied());
                self.costs += order.len() as u64;
                let rank = Rank {
                    weight: node.weight,
                    order,
                };
                self.ranks.insert(node.name.to_owned(), rank);
            }
        }
        let pairs = Merge::new(nodes, &self.ranks, &self.names);
        let placed = place(nodes, self.slots.len(), self.names.len(), pairs);
        let owners = self.slots.iter().filter_map(|(name, &slot)| {
            let node = placed[slot as usize]?;
            Some((name.clone(), node))
        });
        Split {
            owners: owners.collect(),
            nodes: nodes.iter().map(|node| node.name.into()).collect(),
        }
    }

    /// Brings what is known for each node up to date with the targets that came and went.
    fn settle(&mut self) {
        let added: Vec<u32> = std::mem::take(&mut self.added);
        let removed = std::mem::take(&mut self.removed);
        if added.is_empty() && removed.is_empty() {
            return;
        }
        let mut ranks = std::mem::take(&mut self.ranks);
        let fresh: HashSet<u32> = added.into_iter().collect();
        for (name, rank) in &mut ranks {
            // A slot that was given up and taken again has another target now.
            rank.order
                .retain(|(_, slot)| self.names[*slot as usize].is_some() && !fresh.contains(slot));
            let node = Node {
                name,
                weight: rank.weight,
                capacity: None,
            };
            let live = fresh
                .iter()
                .copied()
                .filter(|slot| self.names[*slot as usize].is_some());
            let more = self.order(&node, live);
            self.costs += more.len() as u64;
            rank.order.extend(more);
            let names = &self.names;
            rank.order.sort_by(|a, b| ordered(names, a, b));
        }
        self.ranks = ranks;
        // Nothing refers to them any more.
        let free = removed
            .into_iter()
            .filter(|slot| self.names[*slot as usize].is_none());
        self.free.extend(free);
    }

    fn order(&self, node: &Node<'_>, slots: impl Iterator<Item = u32>) -> Vec<(u64, u32)> {
        let mut order: Vec<(u64, u32)> = slots
            .filter_map(|slot| {
                let name = self.names[slot as usize].as_ref()?;
                Some((cost(node, name), slot))
            })
            .collect();
        order.sort_by(|a, b| ordered(&self.names, a, b));
        order
    }
}

/// By cost, and by name where costs are the same.
fn ordered(names: &[Option<Arc<str>>], a: &(u64, u32), b: &(u64, u32)) -> Ordering {
    a.0.cmp(&b.0)
        .then_with(|| names[a.1 as usize].cmp(&names[b.1 as usize]))
}

/// What one node wants most of what it was not asked about yet. The order of the fields is the order
/// in which pairs are looked at.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Head<'a> {
    cost: u64,
    target: &'a str,
    node: &'a str,
    slot: u32,
    place: usize,
    next: usize,
}

/// All pairs of nodes and targets in the order of their costs.
#[derive(Clone)]
struct Merge<'a> {
    orders: Vec<&'a [(u64, u32)]>,
    names: &'a [Option<Arc<str>>],
    heads: BinaryHeap<Reverse<Head<'a>>>,
}

impl<'a> Merge<'a> {
    fn new(
        nodes: &'a [Node<'_>],
        ranks: &'a BTreeMap<String, Rank>,
        names: &'a [Option<Arc<str>>],
    ) -> Self {
        let order = |node: &Node<'_>| match ranks.get(node.name) {
            Some(rank) if node.weight > 0 => &rank.order[..],
            _ => &[],
        };
        let mut merge = Self {
            orders: nodes.iter().map(order).collect(),
            names,
            heads: BinaryHeap::with_capacity(nodes.len()),
        };
        for (place, node) in nodes.iter().enumerate() {
            merge.push(place, node.name, 0);
        }
        merge
    }

    fn push(&mut self, place: usize, node: &'a str, next: usize) {
        if let Some(&(cost, slot)) = self.orders[place].get(next) {
            self.heads.push(Reverse(Head {
                cost,
                target: self.names[slot as usize].as_deref().unwrap_or_default(),
                node,
                slot,
                place,
                next: next + 1,
            }));
        }
    }
}

impl Iterator for Merge<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse(head) = self.heads.pop()?;
        self.push(head.place, head.node, head.next);
        Some((head.slot as usize, head.place))
    }
}

fn capacity(node: &Node<'_>) -> u64 {
    node.capacity.map_or(u64::MAX, u64::from)
}

struct Shares {
    /// What each node gets for certain.
    floor: Vec<u64>,
    /// Which nodes may have one more.
    may_exceed: Vec<bool>,
    /// How many nodes have one more.
    extra: u64,
}

/// Shares by weight. A node that is full by its capacity leaves the rest to the others.
fn shares(nodes: &[Node<'_>], targets: usize) -> Shares {
    let mut floor = vec![0_u64; nodes.len()];
    let mut full: Vec<bool> = nodes
        .iter()
        .map(|node| node.weight == 0 || node.capacity == Some(0))
        .collect();
    let mut left = targets as u64;
    loop {
        let open = |full: &[bool]| {
            nodes
                .iter()
                .zip(full)
                .filter(|(_, full)| !**full)
                .map(|(node, _)| u128::from(node.weight))
                .sum::<u128>()
        };
        let total = open(&full);
        if total == 0 {
            return Shares {
                floor,
                may_exceed: vec![false; nodes.len()],
                extra: 0,
            };
        }
        let share = |node: &Node<'_>| u128::from(left) * u128::from(node.weight) / total;
        let overfull: Vec<usize> = (0..nodes.len())
            .filter(|&index| {
                !full[index] && share(&nodes[index]) >= u128::from(capacity(&nodes[index]))
            })
            .collect();
        if overfull.is_empty() {
            let mut given = 0;
            for (index, node) in nodes.iter().enumerate() {
                if !full[index] {
                    floor[index] = u64::try_from(share(node)).unwrap_or(u64::MAX);
                    given += floor[index];
                }
            }
            return Shares {
                may_exceed: full.iter().map(|full| !full).collect(),
                extra: left - given,
                floor,
            };
        }
        for index in overfull {
            full[index] = true;
            floor[index] = capacity(&nodes[index]);
            left -= floor[index];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_matches_its_published_vectors() {
        assert_eq!(fnv1a(*b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn the_logarithm_is_right_to_nine_digits() {
        for x in [0, 1, 2, 1000, 1 << 40, u64::MAX / 3, u64::MAX - 1] {
            let exact = 64.0 - (x as f64 + 1.0).log2();
            let ours = negative_log2(x) as f64 / 2_f64.powi(32);
            assert!((exact - ours).abs() < 1e-8, "{x}: {exact} but {ours}");
        }
        assert_eq!(negative_log2(u64::MAX), 0);
    }

    /// The same split as [`assign`], whatever joined and left before.
    #[test]
    fn a_ranking_splits_as_the_whole_computation_does() {
        let mut random = 7_u64;
        let mut draw = |below: u64| {
            random = finalise(random.wrapping_add(0x9e37_79b9_7f4a_7c15));
            random % below
        };
        let mut ranking = Ranking::default();
        let mut nodes: Vec<(String, u32, Option<u32>)> = Vec::new();
        let mut targets: std::collections::BTreeSet<String> = std::collections::BTreeSet::new();
        for step in 0..150 {
            match draw(5) {
                0 if nodes.len() > 1 => {
                    nodes.remove(0);
                }
                0 | 1 => {
                    let capacity = (draw(4) == 0).then(|| u32::try_from(draw(9)).unwrap());
                    let weight = u32::try_from(draw(4)).unwrap();
                    nodes.push((format!("node-{step}"), weight, capacity));
                }
                2 => {
                    let gone: Vec<String> = targets.iter().take(3).cloned().collect();
                    for name in gone {
                        targets.remove(&name);
                        ranking.remove(&name);
                    }
                }
                _ => {
                    for _ in 0..draw(9) {
                        let name = format!("target-{}", draw(60));
                        ranking.add(&name);
                        targets.insert(name);
                    }
                }
            }
            let all: Vec<Node<'_>> = nodes
                .iter()
                .map(|(name, weight, capacity)| Node {
                    name,
                    weight: *weight,
                    capacity: *capacity,
                })
                .collect();
            let names: Vec<&str> = targets.iter().map(String::as_str).collect();
            let split = ranking.split(&all);
            for (target, node) in names.iter().zip(assign(&all, &names, |_, _| true)) {
                let expected = node.map(|node| all[node].name);
                assert_eq!(split.get(target), expected, "step {step}, {target}");
            }
        }
    }

    #[test]
    fn a_node_that_joins_costs_one_pass_over_the_targets() {
        let mut ranking = Ranking::default();
        let names: Vec<String> = (0..10_000).map(|n| format!("target-{n}")).collect();
        ranking.set(names.iter().map(String::as_str));
        let nodes: Vec<String> = (0..50).map(|n| format!("node-{n}")).collect();
        for known in 1..=nodes.len() {
            let known: Vec<Node<'_>> = nodes[..known].iter().map(|it| Node::equal(it)).collect();
            assert_eq!(ranking.split(&known).len(), 10_000);
        }
        assert_eq!(ranking.costs_computed(), 50 * 10_000);
        ranking.add("one-more");
        let all: Vec<Node<'_>> = nodes.iter().map(|it| Node::equal(it)).collect();
        assert_eq!(ranking.split(&all).len(), 10_001);
        assert_eq!(ranking.costs_computed(), 50 * 10_001);
    }
}
