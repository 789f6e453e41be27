//! Keys in order. Their bytes lie all over the memory; the first of them, side by side, nearly always decide.

use crate::Key;

/// The first bytes of a key as a number. It orders keys as they order themselves, but for those that begin
/// alike: no key has a zero byte.
pub type Beginning = u128;

/// Of this key.
pub fn beginning(key: &Key) -> Beginning {
    let key = key.as_str().as_bytes();
    let mut first = [0; size_of::<Beginning>()];
    let length = key.len().min(first.len());
    first[..length].copy_from_slice(&key[..length]);
    Beginning::from_be_bytes(first)
}

/// Sorts by what `before` says, and then by keys; what is equal stays in its order.
pub fn sort<'k, T, B: Ord>(items: &mut [T], before: impl Fn(&T) -> B, key: impl Fn(&T) -> &'k Key) {
    let outline = |item: &T| (before(item), beginning(key(item)));
    items.sort_by_cached_key(outline);
    for alike in items.chunk_by_mut(|a, b| outline(a) == outline(b)) {
        alike.sort_by(|a, b| key(a).cmp(key(b)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_order_of_the_keys() {
        let short = [
            "1",
            "10",
            "2",
            "ü",
            "a-long-id-that-goes-on-1",
            "a-long-id-that-goes-on-0",
        ];
        let ids = short
            .iter()
            .flat_map(|id| [id.to_string(), format!("{id}ü")]);
        let keys = ids
            .flat_map(|id| ["job", "a-kind-that-is-long"].map(|kind| Key::new(kind, &id).unwrap()));
        let items: Vec<(u8, Key, usize)> = keys
            .flat_map(|key| [(2, key.clone()), (1, key)])
            .cycle()
            .take(100)
            .enumerate()
            .map(|(place, (before, key))| (before, key, place))
            .collect();
        let mut sorted: Vec<&(u8, Key, usize)> = items.iter().collect();
        sort(&mut sorted, |item| item.0, |item| &item.1);
        let mut plainly = items.clone();
        // The place comes last: what is equal stays in its order.
        plainly.sort();
        assert!(sorted.into_iter().eq(&plainly));
        plainly.sort_by(|a, b| a.1.cmp(&b.1));
        assert!(plainly.is_sorted_by_key(|item| beginning(&item.1)));
    }
}
