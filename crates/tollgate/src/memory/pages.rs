//! Pages: the state in pieces, as a durable store writes it.
//!
//! ```text
//! page:   u16 tags
//!         u32 keys, each: identity 12 bytes, u16 which of the tags, state 8 bytes for each word
//! single: a tag; for each of its limits: u32 numbers, each 8 bytes
//! tag:    rule, budget, u64 unit cost, u16 limits, each in its notation
//! ```
//!
//! A page names the budgets of its states and the limits that wrote them, in their notation, so it
//! means the same to every process that knows the seed. Numbers are little-endian. A text is
//! preceded by its length in bytes, a u16.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "indexes and counts within one allocation, far below the width of their integers"
)]

use std::collections::HashMap;

use smallvec::SmallVec;

use super::changes::page_of;
use super::hash::Id;
use super::lookup::shard_of;
use super::shard::{Cells, Shard, UNPACKED, Unpacked};
use super::table::WIDEST;
use super::{ALL_SHARDS, MemoryStore, SHARDS};
use crate::cell::Cell;
use crate::key::Budget;
use crate::rule::Tag;
use crate::{Error, Limit, RuleName};

/// Length of a page's name: two bytes for the shard, one for the page.
const NAME: usize = 3;

/// Length of an identity.
const ID: usize = 12;

impl MemoryStore {
    /// The seed of key identities. As secret as the keys: it lets an attacker construct collisions.
    #[doc(hidden)]
    #[must_use]
    pub fn seed(&self) -> [u64; 2] {
        self.secrets.seed()
    }

    /// Turns change tracking on or off, for [`changed_pages`](Self::changed_pages). Changes noted
    /// so far are discarded.
    #[doc(hidden)]
    pub fn set_tracked(&self, tracked: bool) {
        self.shards.iter().for_each(|shard| shard.0.lock().track_changes(tracked));
    }

    /// Whether [`changed_pages`](Self::changed_pages) may have a page to hand out.
    #[doc(hidden)]
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.views.flags.any()
    }

    /// Calls `each` with the name and the content of every page that has changed since the last
    /// call. The content is empty if the page has no keys left. All pages together, each as last
    /// handed out, are the state of every key as of some moment since this call began.
    ///
    /// A shard's lock is held while its pages are copied, but not while `each` is called.
    #[doc(hidden)]
    pub fn changed_pages(&self, mut each: impl FnMut(&[u8], &[u8])) {
        let (mut pages, mut content) = (Vec::new(), Vec::new());
        for index in self.views.flags.lower() {
            let mut shard = self.shards[index].0.lock();
            shard.collect(&mut pages, &mut content);
            drop(shard);
            let mut start = 0;
            for (name, end) in pages.drain(..) {
                each(&name, &content[start..end]);
                start = end;
            }
            content.clear();
        }
    }

    /// Marks every page as changed: the next [`changed_pages`](Self::changed_pages) hands out the
    /// whole state, including empty pages.
    #[doc(hidden)]
    pub fn all_pages_changed(&self) {
        self.shards.iter().for_each(|shard| shard.0.lock().note_all());
    }

    /// Loads pages. Call it before the first request.
    #[doc(hidden)]
    #[must_use]
    pub fn loader(&self) -> Loader<'_> {
        Loader { store: self, known: HashMap::new() }
    }

    /// Adds the cells of a new key as they are, packed into a table or unpacked.
    pub(super) fn put(
        &self,
        shard: usize,
        id: Id,
        unpacked: Unpacked,
        packed: bool,
    ) -> Result<(), &'static str> {
        let mut shard = self.shards[shard].0.lock();
        self.make_room(&mut shard, id, unpacked.tag)?;
        shard.insert_cells(id, unpacked, packed);
        Ok(())
    }

    /// Prepares a shard for a key that was written before, which is exempt from the bounds.
    fn make_room(&self, shard: &mut Shard, id: Id, tag: Tag) -> Result<(), &'static str> {
        if shard.find(id, tag.words()).is_some() {
            return Err("invalid: it repeats a key of another page");
        }
        shard.next_idle = 0;
        self.room.take(&self.room.of(tag.rule), false);
        Ok(())
    }

    /// The tag with this content.
    pub(super) fn tag_of(&self, rule: &str, budget: &str, limits: &[&str], unit_cost: u64) -> Option<Tag> {
        let (rule, budget) = (RuleName::intern(rule), Budget::parse(budget)?);
        if matches!(budget, Budget::InlineTime | Budget::InlineCount(_) | Budget::InlineSlots) {
            return limits.is_empty().then(|| Tag::inline(rule, budget, unit_cost));
        }
        let limits: Vec<Limit> = limits.iter().map(|limit| limit.parse().ok()).collect::<Option<_>>()?;
        (!limits.is_empty()).then(|| Tag::new(rule, budget, limits.into(), unit_cost))
    }
}

/// Loads pages. Made by [`MemoryStore::loader`].
#[doc(hidden)]
#[derive(Debug)]
pub struct Loader<'a> {
    store: &'a MemoryStore,
    /// Tags read before, by their bytes: most pages share them.
    known: HashMap<Vec<u8>, Tag>,
}

impl Loader<'_> {
    /// Loads the keys of a page as they were written, and returns their number. Nothing expires
    /// during loading; a key that has expired since is noticed when it is next touched.
    ///
    /// # Errors
    /// [`Error::InvalidPage`] if the page is damaged or belongs to another store. The store must
    /// not be used then.
    pub fn load(&mut self, name: &[u8], content: &[u8]) -> Result<u64, Error> {
        let invalid = |reason| Error::InvalidPage { reason };
        let name = Name::parse(name).ok_or(invalid("without a name, or of a shard that does not exist"))?;
        let elsewhere = invalid("of another store: its keys belong to other pages");
        if let Some(id) = name.id {
            let unpacked = self.read_single(content).ok_or(invalid("not a key and its state"))?;
            name.has(id, self.store).then_some(()).ok_or(elsewhere)?;
            // Unpacked here too, even if the key would pack by now: otherwise its old page would
            // stay, and it would be stored twice.
            self.store.put(name.shard, id, unpacked, false).map_err(invalid)?;
            return Ok(1);
        }
        let keys = self.read_page(content).ok_or(invalid("not a list of keys and their states"))?;
        keys.iter().all(|(id, _, _)| name.has(*id, self.store)).then_some(()).ok_or(elsewhere)?;
        let mut shard = self.store.shards[name.shard].0.lock();
        for (id, tag, words) in &keys {
            self.store.make_room(&mut shard, *id, *tag).map_err(invalid)?;
            let width = tag.words().unwrap_or(0);
            shard.insert_packed(*id, *tag).copy_from_slice(&words[..width]);
        }
        Ok(u64::try_from(keys.len()).unwrap_or(u64::MAX))
    }

    /// The keys of a page.
    fn read_page(&mut self, content: &[u8]) -> Option<Vec<(Id, Tag, [u64; WIDEST])>> {
        let mut rest = content;
        let tags: Option<Vec<Tag>> =
            (0..u16::from_le_bytes(bytes(&mut rest)?)).map(|_| self.read_tag(&mut rest)).collect();
        let (tags, mut keys) = (tags?, Vec::new());
        for _ in 0..u32::from_le_bytes(bytes(&mut rest)?) {
            let id = id_of(&bytes::<ID>(&mut rest)?)?;
            let tag = *tags.get(usize::from(u16::from_le_bytes(bytes(&mut rest)?)))?;
            let mut words = [0; WIDEST];
            for word in words.get_mut(..tag.words()?)? {
                *word = u64::from_le_bytes(bytes(&mut rest)?);
            }
            keys.push((id, tag, words));
        }
        rest.is_empty().then_some(keys)
    }

    /// The cells of a single-key page.
    fn read_single(&mut self, content: &[u8]) -> Option<Unpacked> {
        let mut rest = content;
        let tag = self.read_tag(&mut rest)?;
        let cell = |limit: &Limit| {
            let count = u32::from_le_bytes(bytes(&mut rest)?);
            let numbers: Option<Vec<u64>> =
                (0..count).map(|_| bytes(&mut rest).map(u64::from_le_bytes)).collect();
            Cell::from_numbers(*limit, &numbers?)
        };
        let cells = tag.limits.into_iter().map(cell).collect::<Option<Cells>>()?;
        rest.is_empty().then_some(Unpacked { tag, cells })
    }

    fn read_tag(&mut self, rest: &mut &[u8]) -> Option<Tag> {
        let written = *rest;
        let (rule, budget) = (text(rest)?, text(rest)?);
        let unit_cost = u64::from_le_bytes(bytes(rest)?);
        let limits: Option<SmallVec<[&str; 4]>> =
            (0..u16::from_le_bytes(bytes(rest)?)).map(|_| text(rest)).collect();
        let (limits, written) = (limits?, &written[..written.len() - rest.len()]);
        if let Some(tag) = self.known.get(written) {
            return Some(*tag);
        }
        let tag = self.store.tag_of(rule, budget, &limits, unit_cost)?;
        self.known.insert(written.to_vec(), tag);
        Some(tag)
    }
}

/// The limits of a tag in their notation; none if they come with requests.
pub(super) fn written_limits(tag: Tag) -> Vec<String> {
    let limits = if tag.is_inline() { &[] } else { tag.limits.as_slice() };
    limits.iter().map(Limit::to_string).collect()
}

/// The name of a page, as it was written.
struct Name<'a> {
    shard: usize,
    /// The part that the names of all pages have.
    page: &'a [u8],
    /// The only key of the page, if it is a single-key page.
    id: Option<Id>,
}

impl<'a> Name<'a> {
    fn parse(name: &'a [u8]) -> Option<Self> {
        let (page, id) = name.split_at_checked(NAME)?;
        let shard = usize::from(u16::from_be_bytes(*page.first_chunk()?));
        let id = if id.is_empty() { None } else { Some(id_of(id)?) };
        (shard < ALL_SHARDS).then_some(Self { shard, page, id })
    }

    /// Whether a key belongs to the page.
    fn has(&self, id: Id, store: &MemoryStore) -> bool {
        let home = store.secrets.home(id);
        let is_page = self.page == page_name(self.shard, page_of(home));
        is_page && (self.shard == shard_of(home) || self.shard >= SHARDS)
    }
}

/// The shard, and the page with its bits reversed. In name order, pages are then spread over the
/// whole of a shard, so they can be loaded into a table that is still growing. In page order each
/// would land on top of the one before.
fn page_name(shard: usize, page: u64) -> [u8; NAME] {
    let [high, low] = u16::try_from(shard).unwrap_or(u16::MAX).to_be_bytes();
    [high, low, u8::try_from(page).unwrap_or(0).reverse_bits()]
}

impl Shard {
    /// Appends the content of every changed page to `content`, and its name and end to `pages`.
    fn collect(&mut self, pages: &mut Vec<(SmallVec<[u8; 16]>, usize)>, content: &mut Vec<u8>) {
        let (changed, single) = self.take_changes();
        for page in changed {
            self.write_page(page, content);
            pages.push((page_name(self.index, page.into()).as_slice().into(), content.len()));
        }
        for id in single {
            if let Some(unpacked) = self.find(id, Some(1)).and_then(|found| self.unpacked_of(found)) {
                write_single(unpacked, content);
            }
            let page = page_name(self.index, page_of(self.secrets.home(id)));
            pages.push((page.into_iter().chain(id_bytes(id)).collect(), content.len()));
        }
    }

    /// Appends the keys of one page, or nothing if it has none.
    fn write_page(&self, page: u32, content: &mut Vec<u8>) {
        let (mut tags, mut keys, mut count): (Vec<u32>, Vec<u8>, u32) = Default::default();
        for width in 1..=WIDEST {
            let table = self.table(width);
            for index in table.page_range(page) {
                let (id, number) = (table.id(index), table.number(index));
                if number == UNPACKED || page_of(self.secrets.home(id)) != u64::from(page) {
                    continue;
                }
                let tag = tags.iter().position(|tag| *tag == number).unwrap_or_else(|| {
                    tags.push(number);
                    tags.len() - 1
                });
                keys.extend(id_bytes(id));
                keys.extend(u16::try_from(tag).unwrap_or(u16::MAX).to_le_bytes());
                table.state(index).iter().for_each(|word| keys.extend(word.to_le_bytes()));
                count += 1;
            }
        }
        if count > 0 {
            content.extend(u16::try_from(tags.len()).unwrap_or(u16::MAX).to_le_bytes());
            tags.iter().filter_map(|number| Tag::of_number(*number)).for_each(|tag| write_tag(tag, content));
            content.extend(count.to_le_bytes());
            content.append(&mut keys);
        }
    }
}

fn write_tag(tag: Tag, content: &mut Vec<u8>) {
    let limits = written_limits(tag);
    write_text(tag.rule.as_str(), content);
    write_text(&tag.budget.to_string(), content);
    content.extend(tag.unit_cost.to_le_bytes());
    content.extend(u16::try_from(limits.len()).unwrap_or(u16::MAX).to_le_bytes());
    limits.iter().for_each(|limit| write_text(limit, content));
}

fn write_text(text: &str, content: &mut Vec<u8>) {
    content.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    content.extend(text.as_bytes());
}

fn write_single(unpacked: &Unpacked, content: &mut Vec<u8>) {
    write_tag(unpacked.tag, content);
    for cell in &unpacked.cells {
        let numbers = cell.to_numbers();
        content.extend(u32::try_from(numbers.len()).unwrap_or(u32::MAX).to_le_bytes());
        numbers.iter().for_each(|number| content.extend(number.to_le_bytes()));
    }
}

/// Reads a text.
fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = usize::from(u16::from_le_bytes(bytes(rest)?));
    let text;
    (text, *rest) = rest.split_at_checked(length)?;
    std::str::from_utf8(text).ok()
}

/// Reads `N` bytes.
fn bytes<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let next;
    (next, *rest) = rest.split_first_chunk()?;
    Some(*next)
}

fn id_bytes(Id { high, low }: Id) -> [u8; ID] {
    let [_, _, _, _, bytes @ ..] = (u128::from(high) << 32 | u128::from(low)).to_be_bytes();
    bytes
}

fn id_of(bytes: &[u8]) -> Option<Id> {
    let (high, low) = bytes.split_first_chunk()?;
    Some(Id { high: u64::from_be_bytes(*high), low: u32::from_be_bytes(low.try_into().ok()?) })
}

#[cfg(test)]
mod tests;
