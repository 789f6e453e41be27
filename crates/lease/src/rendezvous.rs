//! Who should have what: weighted rendezvous hashing with a bound, so that every instance computes
//! the same even split without talking to another.
//!
//! All arithmetic is on integers, so that other languages get the same answers: the vectors in
//! `tests/vectors/rendezvous.json` are checked here and can be checked anywhere.

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
    let mut assigned = vec![None; targets.len()];
    let shares = shares(nodes, targets.len());
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
    let mut load = vec![0_u64; nodes.len()];
    let mut extra = shares.extra;
    for &(_, target, node) in &pairs {
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
        }
    }
    // Where not everyone may have everything, shares can be impossible to keep: rather uneven than
    // without an owner.
    for &(_, target, node) in &pairs {
        if assigned[target].is_none() && load[node] < capacity(&nodes[node]) {
            load[node] += 1;
            assigned[target] = Some(node);
        }
    }
    assigned
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
}
