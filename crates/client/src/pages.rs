//! Lists read page by page: the leases or the records that a query asks for, in the order of their keys. A page
//! is small, so that no store keeps a holder waiting for a reader, and the next one begins after the last key
//! of the one before: what ends or begins meanwhile moves nothing else on or off the list.

use lease::{Authority, Error, Lease, LeaseQuery, Page, Record, RecordQuery, Seen};

/// How many entries one page has at most.
pub const PAGE: usize = 1_000;
/// How many entries a list may have that is wanted as a whole.
pub const MAX_ALL: usize = 1_000_000;

/// A query whose answer comes in pages.
pub trait Listing: Clone + Send + Sync {
    /// What is listed.
    type Item: Send;

    /// How many entries a page has at most; 0 stands for [`PAGE`].
    fn limit(&mut self) -> &mut usize;

    /// Asks for one page.
    fn ask(self, authority: &dyn Authority) -> Seen<'_, Page<Self::Item>>;

    /// Goes on after this entry.
    fn go_on_after(&mut self, last: &Self::Item);
}

impl Listing for LeaseQuery {
    type Item = Lease;

    fn limit(&mut self) -> &mut usize {
        &mut self.limit
    }

    fn ask(self, authority: &dyn Authority) -> Seen<'_, Page<Lease>> {
        authority.leases(self)
    }

    fn go_on_after(&mut self, last: &Lease) {
        self.after = Some(last.key.clone());
    }
}

impl Listing for RecordQuery {
    type Item = Record;

    fn limit(&mut self) -> &mut usize {
        &mut self.limit
    }

    fn ask(self, authority: &dyn Authority) -> Seen<'_, Page<Record>> {
        authority.records(self)
    }

    fn go_on_after(&mut self, last: &Record) {
        self.after = Some(last.key.id().to_owned());
    }
}

/// The pages of one list.
pub struct Pages<'a, Q> {
    authority: &'a dyn Authority,
    next: Option<Q>,
}

impl<'a> Pages<'a, RecordQuery> {
    /// The records of a kind whose ids begin with `prefix`.
    pub fn records(authority: &'a dyn Authority, kind: &str, prefix: impl Into<String>) -> Self {
        let query = RecordQuery {
            kind: kind.to_owned(),
            prefix: prefix.into(),
            after: None,
            limit: PAGE,
        };
        Self::new(authority, query)
    }
}

impl<'a, Q: Listing> Pages<'a, Q> {
    /// What a query asks for, beginning with its page. Its limit is that of a page.
    pub fn new(authority: &'a dyn Authority, mut query: Q) -> Self {
        let limit = query.limit();
        *limit = if *limit == 0 { PAGE } else { PAGE.min(*limit) };
        Self {
            authority,
            next: Some(query),
        }
    }

    /// The next page; `None` after the last. After an error the same page is asked for again.
    pub async fn next(&mut self) -> Result<Option<Vec<Q::Item>>, Error> {
        let Some(query) = &mut self.next else {
            return Ok(None);
        };
        let page = query.clone().ask(self.authority).await?;
        match page.items.last().filter(|_| page.more) {
            Some(last) => query.go_on_after(last),
            None => self.next = None,
        }
        Ok(Some(page.items))
    }

    /// Whether there may be another page.
    pub const fn has_more(&self) -> bool {
        self.next.is_some()
    }

    /// What `part` makes of the entries that it wants: `most` at most, or what is left of a page more.
    pub async fn select<T>(
        &mut self,
        most: usize,
        mut part: impl FnMut(Q::Item) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut found = Vec::new();
        while found.len() < most
            && let Some(page) = self.next().await?
        {
            found.extend(page.into_iter().filter_map(&mut part));
        }
        Ok(found)
    }

    /// The first of them: `most` at most, or what is left of a page more.
    pub async fn first(&mut self, most: usize) -> Result<Vec<Q::Item>, Error> {
        self.select(most, Some).await
    }

    /// All of them. An error if there are more than [`MAX_ALL`]: a part must not pass for the whole.
    pub async fn all(&mut self) -> Result<Vec<Q::Item>, Error> {
        let found = self.first(MAX_ALL).await?;
        if self.has_more() {
            return Err(Error::Broken(format!(
                "a list has more than {MAX_ALL} entries"
            )));
        }
        Ok(found)
    }
}
