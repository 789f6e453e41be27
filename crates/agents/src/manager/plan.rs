//! Which worker has which camera: packed by site, sticky, and the same for the same input.

use std::collections::BTreeMap;

/// A camera that this manager holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed<'a> {
    /// Its name.
    pub camera: &'a str,
    /// Its site.
    pub site: &'a str,
    /// The worker that has it.
    pub slot: Option<usize>,
}

/// The worker of each camera. A camera stays where it is as long as that worker exists and is not over
/// its limit; a new one joins the worker with the most cameras of its site, or else an idle worker, or
/// else the one with the most room. Cameras beyond all room are left out.
pub fn assign(cameras: &[Placed<'_>], slots: usize, per_slot: usize) -> BTreeMap<String, usize> {
    let mut sorted = cameras.to_vec();
    sorted.sort_by_key(|it| (it.site, it.camera));
    let mut load = vec![0_usize; slots];
    let mut of_site: BTreeMap<(&str, usize), usize> = BTreeMap::new();
    let mut placed = BTreeMap::new();
    let mut open = Vec::new();
    for it in sorted {
        match it.slot {
            Some(slot) if slot < slots && load[slot] < per_slot => {
                load[slot] += 1;
                *of_site.entry((it.site, slot)).or_default() += 1;
                placed.insert(it.camera.to_owned(), slot);
            }
            _ => open.push(it),
        }
    }
    for it in open {
        let best = (0..slots)
            .filter(|&slot| load[slot] < per_slot)
            .min_by_key(|&slot| {
                let same = of_site.get(&(it.site, slot)).copied().unwrap_or(0);
                (usize::MAX - same, load[slot], slot)
            });
        if let Some(slot) = best {
            load[slot] += 1;
            *of_site.entry((it.site, slot)).or_default() += 1;
            placed.insert(it.camera.to_owned(), slot);
        }
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new<'a>(camera: &'a str, site: &'a str) -> Placed<'a> {
        Placed {
            camera,
            site,
            slot: None,
        }
    }

    fn counts(placed: &BTreeMap<String, usize>, slots: usize) -> Vec<usize> {
        let mut counts = vec![0; slots];
        for slot in placed.values() {
            counts[*slot] += 1;
        }
        counts
    }

    #[test]
    fn sixty_four_cameras_fill_four_workers() {
        let names: Vec<String> = (0..70).map(|n| format!("cam-{n:02}")).collect();
        let cameras: Vec<_> = names.iter().map(|name| new(name, "s")).collect();
        let placed = assign(&cameras, 4, 16);
        assert_eq!(counts(&placed, 4), [16, 16, 16, 16]);
        assert_eq!(placed.len(), 64, "nobody gets more than there is room for");
        let mut shuffled = cameras.clone();
        shuffled.reverse();
        assert_eq!(
            assign(&shuffled, 4, 16),
            placed,
            "the order does not matter"
        );
    }

    #[test]
    fn sites_stay_together_and_apart_from_each_other() {
        let cameras = [new("a1", "a"), new("b1", "b"), new("a2", "a")];
        let placed = assign(&cameras, 2, 16);
        assert_eq!(placed["a1"], placed["a2"]);
        assert_ne!(placed["a1"], placed["b1"]);
    }

    #[test]
    fn what_is_placed_stays_where_it_is() {
        let mut cameras = vec![new("a", "s"), new("b", "s"), new("c", "s")];
        cameras[1].slot = Some(3);
        let placed = assign(&cameras, 4, 2);
        assert_eq!(placed["b"], 3);
        assert_eq!(placed["a"], 3, "the worker of its site has room");
        assert_ne!(placed["c"], 3, "now it has not");
        // One worker less: only its cameras move.
        let cameras = vec![
            Placed {
                slot: Some(0),
                ..new("a", "s")
            },
            Placed {
                slot: Some(1),
                ..new("b", "s")
            },
        ];
        let placed = assign(&cameras, 1, 16);
        assert_eq!((placed["a"], placed["b"]), (0, 0));
        assert!(assign(&cameras, 0, 16).is_empty());
    }
}
