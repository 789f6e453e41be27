//! Whether a move may be made, before anything is changed.

use lease::{Token, engine::StoredSlot};

use super::{Error, Head, Import, Maintenance, Options, Phase, Side, backend::is_leadership};
use crate::StoreUrl;

/// How the two ends stand to each other.
pub(super) struct Standing {
    /// Which move this is.
    pub id: uuid::Uuid,
    /// How the ends were closed before.
    pub locks: (Option<Maintenance>, Option<Maintenance>),
    /// The target holds a part of this very move.
    resumed: bool,
}

impl Standing {
    /// Whether this goes on with a move that was broken off.
    pub const fn resumed(&self) -> bool {
        self.resumed
    }
}

/// What was seen at both ends.
pub(super) struct Looked {
    pub source: Head,
    pub target: Head,
    /// The largest token of the target's own leaders.
    pub leaders: Token,
    /// Keys that other programs hold in the source: they stay where they are.
    pub foreign: u64,
}

/// Whether the ends belong to this move, to another one or to none.
pub(super) async fn standing(
    source: &dyn Import,
    target: &dyn Import,
    to: &StoreUrl,
    options: Options,
) -> Result<Standing, Error> {
    let at = |side| move |error| Error::Store(side, error);
    let left = source.maintenance().await.map_err(at(Side::Source))?;
    let arriving = target.maintenance().await.map_err(at(Side::Target))?;
    let same =
        |maintenance: &Maintenance| left.as_ref().is_some_and(|left| left.id == maintenance.id);
    let resumed = arriving
        .as_ref()
        .is_some_and(|maintenance| maintenance.phase == Phase::Arriving && same(maintenance));
    if let Some(maintenance) = &left {
        let goes_on = maintenance.peer == to.to_string()
            && (maintenance.phase == Phase::Leaving
                || (maintenance.phase == Phase::Left && resumed));
        if !goes_on {
            return Err(Error::Maintenance {
                side: Side::Source,
                maintenance: maintenance.clone(),
            });
        }
    }
    if let Some(maintenance) = &arriving {
        let free = match maintenance.phase {
            Phase::Arriving => resumed || options.replace,
            // What is left behind is known to be out of date.
            Phase::Left => true,
            Phase::Leaving => false,
        };
        if !free {
            return Err(Error::Maintenance {
                side: Side::Target,
                maintenance: maintenance.clone(),
            });
        }
    }
    Ok(Standing {
        id: left
            .as_ref()
            .map_or_else(uuid::Uuid::new_v4, |maintenance| maintenance.id),
        locks: (left, arriving),
        resumed,
    })
}

/// Compares what both ends hold.
pub(super) async fn compare(
    source: &dyn Import,
    target: &dyn Import,
    standing: &Standing,
    options: Options,
) -> Result<Looked, Error> {
    let at = |side| move |error| Error::Store(side, error);
    let mut looked = Looked {
        source: source.head().await.map_err(at(Side::Source))?,
        target: target.head().await.map_err(at(Side::Target))?,
        leaders: Token::ZERO,
        foreign: 0,
    };
    let mut cursor = String::new();
    loop {
        let part = source.foreign(cursor).await.map_err(at(Side::Source))?;
        looked.foreign += part.items.len() as u64;
        let Some(next) = part.next else { break };
        cursor = next;
    }
    if let (true, (_, Some(maintenance))) = (standing.resumed, &standing.locks) {
        // What is there came from the source.
        looked.leaders = maintenance.floor;
        return Ok(looked);
    }
    let (ours, theirs) = (&looked.source, &looked.target);
    if theirs.floor > ours.floor {
        return Err(Error::LargerFloor {
            target: theirs.floor,
            source_floor: ours.floor,
        });
    }
    looked.leaders = tokens(source, target, ours.floor).await?;
    foreign(source, target).await?;
    let stale = standing.locks.1.is_some();
    if !theirs.is_empty() && !stale && !options.replace {
        return Err(Error::NotEmpty {
            keys: theirs.keys,
            records: theirs.records,
            events: theirs.events,
        });
    }
    Ok(looked)
}

/// No key of the target may have had a larger token than in the source (L3). Returns the largest of
/// the target's own leaders, which are no part of that.
async fn tokens(source: &dyn Import, target: &dyn Import, floor: Token) -> Result<Token, Error> {
    let mut leaders = Token::ZERO;
    let mut cursor = String::new();
    loop {
        let part = target.slots(cursor).await;
        let part = part.map_err(|error| Error::Store(Side::Target, error))?;
        let (own, slots): (Vec<StoredSlot>, Vec<StoredSlot>) = part
            .items
            .into_iter()
            .partition(|slot| is_leadership(&slot.key));
        leaders = own
            .iter()
            .fold(leaders, |largest, slot| largest.max(slot.token));
        let keys = slots.iter().map(|slot| slot.key.clone()).collect();
        let known = source.tokens(keys).await;
        let known = known.map_err(|error| Error::Store(Side::Source, error))?;
        for (slot, known) in slots.into_iter().zip(known) {
            let known = known.max(floor);
            if slot.token > known {
                return Err(Error::LargerToken {
                    key: slot.key,
                    target: slot.token,
                    source_token: known,
                });
            }
        }
        match part.next {
            Some(next) => cursor = next,
            None => return Ok(leaders),
        }
    }
}

/// What another program holds in the target cannot also be held by one of ours.
async fn foreign(source: &dyn Import, target: &dyn Import) -> Result<(), Error> {
    let mut cursor = String::new();
    loop {
        let part = target.foreign(cursor).await;
        let part = part.map_err(|error| Error::Store(Side::Target, error))?;
        let known = source.tokens(part.items.clone()).await;
        let known = known.map_err(|error| Error::Store(Side::Source, error))?;
        for (key, token) in part.items.into_iter().zip(known) {
            // A key that the source only remembers is nobody's; but telling those apart is not worth
            // a second question, since both programs clearly work on the same keys.
            if token != Token::ZERO {
                return Err(Error::Foreign { key });
            }
        }
        match part.next {
            Some(next) => cursor = next,
            None => return Ok(()),
        }
    }
}
