//! The state in pages: how it is kept elsewhere, a piece at a time.
//!
//! ```text
//! page:   u16 tags
//!         u32 keys, each: identity 12 bytes, u16 which of the tags, state 8 bytes for each word
//! alone:  a tag; for each of its limits: u32 numbers, each 8 bytes
//! tag:    rule, budget, u64 unit cost, u16 limits, each in its notation
//! ```
//!
//! A page says itself which budgets its states belong to and which limits wrote them, in their
//! notation: it means the same to every process that knows the seed. Numbers are little-endian, and
//! texts are preceded by a u16 that says how many bytes they have.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::changes::page_of;
use super::hash::Id;
use super::legacy::{cell_of_v1, shard_of_v1};
use super::shard::{Cells, Found, Shard, WIDEST, Whole, pack};
use super::take::shard_of;
use super::{ALL_SHARDS, MemoryStore, SHARDS};
use crate::cell::Cell;
use crate::key::Budget;
use crate::rule::Tag;
use crate::{Error, Limit, Meter, RuleName};

/// How long the name of a page is: its shard, two bytes, and its place there.
const NAME: usize = 3;

/// How long the name of a key by itself is: its page's, and its identity.
const NAME_ALONE: usize = NAME + ID;

/// The same in version 1, when there were fewer shards.
const NAME_V1: usize = 2;
const NAME_ALONE_V1: usize = NAME_V1 + ID;

const ID: usize = 12;

const THERE_BEFORE: &str = "with a key that was there before";

impl MemoryStore {
    /// What identities are made with. As secret as the keys: who knows it can aim for collisions.
    #[must_use]
    pub fn seed(&self) -> [u64; 2] {
        self.secrets.seed()
    }

    /// From now on takes note of what changes, for [`changed_pages`](Self::changed_pages), or no longer
    /// does: then what was noted is forgotten.
    pub fn follow(&self, followed: bool) {
        self.shards.iter().for_each(|shard| shard.0.lock().follow(followed));
    }

    /// Whether there may be anything for [`changed_pages`](Self::changed_pages) to hand out.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.views.flags.any()
    }

    /// Hands out every page that has changed since the last call: its name, and its content, which is
    /// empty if there is nothing on it any more. All pages together, each as it was last handed out,
    /// are the state as of some moment since this call began, key by key.
    ///
    /// A shard's lock is held while its pages are copied; `each` is called without it.
    pub fn changed_pages(&self, mut each: impl FnMut(&[u8], &[u8])) {
        let (mut pages, mut content) = (Vec::new(), Vec::new());
        for index in self.views.flags.lower() {
            let mut shard = self.shards[index].0.lock();
            shard.collect(&mut pages, &mut content);
            drop(shard);
            let mut start = 0;
            for (name, end) in pages.drain(..) {
                each(name.as_bytes(), &content[start..end]);
                start = end;
            }
            content.clear();
        }
    }

    /// Has everything count as changed: the next [`changed_pages`](Self::changed_pages) hands out all
    /// there is, for whoever begins anew. (It then also names pages with nothing on them.)
    pub fn all_pages_changed(&self) {
        self.shards.iter().for_each(|shard| shard.0.lock().note_all());
    }

    /// Takes pages back in, into a store that nothing was asked of yet.
    #[must_use]
    pub fn loader(&self) -> Loader<'_> {
        Loader { store: self, known: HashMap::new() }
    }

    /// Keeps the cells of a key that there is nothing of yet, just as they are: packed, or by
    /// themselves.
    pub(super) fn put(&self, shard: usize, id: Id, whole: Whole, packed: bool) -> Result<(), &'static str> {
        let tag = whole.tag;
        let mut shard = self.shards[shard % ALL_SHARDS].0.lock();
        if shard.find(id, tag.words()) != Found::Nowhere {
            return Err(THERE_BEFORE);
        }
        shard.next_idle = 0;
        match packed {
            true => pack(&whole.cells, shard.insert(id, tag)),
            false => drop(shard.whole.insert(id, whole)),
        }
        self.room.take_anyway(&self.room.of(tag.rule));
        Ok(())
    }
}

/// Takes pages back in. Made by [`MemoryStore::loader`].
#[derive(Debug)]
pub struct Loader<'a> {
    store: &'a MemoryStore,
    /// Tags that were read before, by how they are written: pages have them in common.
    known: HashMap<Vec<u8>, Tag>,
}

impl Loader<'_> {
    /// Keeps what is on a page, just as it was, and says how many keys that were. As of the beginning
    /// of time nothing has lapsed; what has since is found out when it is next touched.
    ///
    /// # Errors
    /// [`Error::InvalidPage`] if it is none of this store's. Then the store is good for nothing more.
    pub fn load(&mut self, name: &[u8], content: &[u8]) -> Result<u64, Error> {
        if name.len() == NAME_V1 || name.len() == NAME_ALONE_V1 {
            return self.load_v1(name, content);
        }
        let invalid = |reason| Error::InvalidPage { reason };
        let shard = usize::from(u16::from_be_bytes(*name.first_chunk().ok_or(invalid("without a name"))?));
        if shard >= ALL_SHARDS {
            return Err(invalid("of a shard that there is not"));
        }
        if name.len() == NAME_ALONE {
            let id = id_of(&name[NAME..]).ok_or(invalid("without an identity"))?;
            let whole = self.read_alone(content).ok_or(invalid("not a key and its state"))?;
            self.belongs(name, shard, id)?;
            // By itself here too, even if it would pack by now: else it would be in two places there.
            self.store.put(shard, id, whole, false).map_err(invalid)?;
            return Ok(1);
        }
        let keys = self.read_page(content).ok_or(invalid("not a list of keys and their states"))?;
        keys.iter().try_for_each(|(id, _, _)| self.belongs(name, shard, *id))?;
        let mut shard = self.store.shards[shard].0.lock();
        shard.next_idle = 0;
        for (id, tag, words) in &keys {
            if shard.find(*id, tag.words()) != Found::Nowhere {
                return Err(invalid(THERE_BEFORE));
            }
            let width = tag.words().unwrap_or(0);
            shard.insert(*id, *tag).copy_from_slice(&words[..width]);
            self.store.room.take_anyway(&self.store.room.of(tag.rule));
        }
        Ok(u64::try_from(keys.len()).unwrap_or(u64::MAX))
    }

    /// The same for a page that version 1 wrote.
    fn load_v1(&mut self, name: &[u8], content: &[u8]) -> Result<u64, Error> {
        let invalid = |reason| Error::InvalidPage { reason };
        let mut rest = content;
        let limits = |rest: &mut &[u8]| {
            let limits: Option<Vec<&str>> =
                (0..u16::from_le_bytes(bytes(rest)?)).map(|_| text(rest)).collect();
            let limits: Option<Vec<Limit>> = limits?.iter().map(|limit| limit.parse().ok()).collect();
            limits.filter(|limits| !limits.is_empty()).map(|limits| self.store.legacy_tag(limits.into()))
        };
        let mut keys: Vec<(Id, Whole, bool)> = Vec::new();
        let mut read = || {
            let numbers = |rest: &mut &[u8], count: u32| -> Option<Vec<u64>> {
                (0..count).map(|_| bytes(rest).map(u64::from_le_bytes)).collect()
            };
            if name.len() == NAME_ALONE_V1 {
                let (id, tag) = (id_of(&name[NAME_V1..])?, limits(&mut rest)?);
                let cell = |limit: &Limit| {
                    let count = u32::from_le_bytes(bytes(&mut rest)?);
                    cell_of_v1(limit, &numbers(&mut rest, count)?)
                };
                let cells = tag.limits.into_iter().map(cell).collect::<Option<Cells>>()?;
                keys.push((id, Whole { tag, cells }, false));
                return rest.is_empty().then_some(());
            }
            let tags: Option<Vec<Tag>> =
                (0..u16::from_le_bytes(bytes(&mut rest)?)).map(|_| limits(&mut rest)).collect();
            let tags = tags?;
            for _ in 0..u32::from_le_bytes(bytes(&mut rest)?) {
                let id = id_of(&bytes::<ID>(&mut rest)?)?;
                let tag = *tags.get(usize::from(u16::from_le_bytes(bytes(&mut rest)?)))?;
                let words = numbers(&mut rest, u32::try_from(tag.words()?).ok()?)?;
                let (mut cells, mut words) = (Cells::new(), words.as_slice());
                for limit in tag.limits {
                    let (state, others) = words.split_at_checked(Meter::words(limit)?)?;
                    cells.push(Cell::plain(Meter::load(*limit, state)));
                    words = others;
                }
                keys.push((id, Whole { tag, cells }, true));
            }
            rest.is_empty().then_some(())
        };
        read().ok_or(invalid("not a list of keys and their states"))?;
        let count = u64::try_from(keys.len()).unwrap_or(u64::MAX);
        for (id, whole, packed) in keys {
            let elsewhere = invalid("of another store: its keys belong elsewhere");
            let shard = shard_of_v1(name, id, self.store).ok_or(elsewhere)?;
            self.store.put(shard, id, whole, packed).map_err(invalid)?;
        }
        Ok(count)
    }

    /// Whether a key is one of this page.
    fn belongs(&self, name: &[u8], shard: usize, id: Id) -> Result<(), Error> {
        let home = self.store.secrets.home(id);
        let here = name.starts_with(&page_name(shard, page_of(home)))
            && (shard >= SHARDS || shard == shard_of(home));
        let elsewhere = Error::InvalidPage { reason: "of another store: its keys belong elsewhere" };
        here.then_some(()).ok_or(elsewhere)
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

    /// The cells of a key by itself.
    fn read_alone(&mut self, content: &[u8]) -> Option<Whole> {
        let mut rest = content;
        let tag = self.read_tag(&mut rest)?;
        let cell = |limit: &Limit| {
            let count = u32::from_le_bytes(bytes(&mut rest)?);
            let numbers: Option<Vec<u64>> =
                (0..count).map(|_| bytes(&mut rest).map(u64::from_le_bytes)).collect();
            Cell::from_numbers(*limit, &numbers?)
        };
        let cells = tag.limits.into_iter().map(cell).collect::<Option<Cells>>()?;
        rest.is_empty().then_some(Whole { tag, cells })
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
        let tag = match rule {
            // What version 1 wrote, and nobody has come for yet.
            "" => {
                let limits: Option<Vec<Limit>> = limits.iter().map(|limit| limit.parse().ok()).collect();
                self.store.legacy_tag(limits?.into())
            }
            rule => tag_of(rule, budget, &limits, unit_cost)?,
        };
        self.known.insert(written.to_vec(), tag);
        Some(tag)
    }
}

/// The tag that these texts are.
pub(super) fn tag_of(rule: &str, budget: &str, limits: &[&str], unit_cost: u64) -> Option<Tag> {
    let (rule, budget) = (RuleName::intern(rule), Budget::parse(budget)?);
    if matches!(budget, Budget::InlineTime | Budget::InlineCount(_)) {
        return limits.is_empty().then(|| Tag::inline(rule, budget, unit_cost));
    }
    let limits: Vec<Limit> = limits.iter().map(|limit| limit.parse().ok()).collect::<Option<_>>()?;
    (!limits.is_empty()).then(|| Tag::new(rule, budget, limits.into(), unit_cost))
}

/// The limits of a tag, as they are written down: none if they come with requests.
pub(super) fn written_limits(tag: Tag) -> Vec<String> {
    let limits = if tag.is_inline() { &[] } else { tag.limits.as_slice() };
    limits.iter().map(Limit::to_string).collect()
}

/// What a page is called.
#[derive(Clone, Copy, Debug)]
struct Name {
    bytes: [u8; NAME_ALONE],
    length: usize,
}

impl Name {
    fn of_page(shard: usize, page: u64) -> Self {
        let mut bytes = [0; NAME_ALONE];
        bytes[..NAME].copy_from_slice(&page_name(shard, page));
        Self { bytes, length: NAME }
    }

    fn of_key(shard: usize, home: u64, id: Id) -> Self {
        let mut bytes = [0; NAME_ALONE];
        bytes[..NAME].copy_from_slice(&page_name(shard, page_of(home)));
        bytes[NAME..].copy_from_slice(&id_bytes(id));
        Self { bytes, length: NAME_ALONE }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A shard, and a page there with its bits in reverse. So in the order of their names pages are
/// spread over the whole of a shard, and may be loaded into a table that is still growing: in the
/// order of their places each would fall on top of the one before.
fn page_name(shard: usize, page: u64) -> [u8; NAME] {
    let [high, low] = u16::try_from(shard).unwrap_or(u16::MAX).to_be_bytes();
    [high, low, u8::try_from(page).unwrap_or(0).reverse_bits()]
}

impl Shard {
    /// Appends the content of everything that changed, and says where each ends.
    fn collect(&mut self, pages: &mut Vec<(Name, usize)>, content: &mut Vec<u8>) {
        let (changed, alone) = self.take_changes();
        for page in changed {
            self.write_page(page, content);
            pages.push((Name::of_page(self.index, page.into()), content.len()));
        }
        for id in alone {
            if let Some(whole) = self.whole.get(&id) {
                write_alone(whole, content);
            }
            pages.push((Name::of_key(self.index, self.secrets.home(id), id), content.len()));
        }
    }

    /// Appends the keys of one page: nothing if there are none.
    fn write_page(&self, page: u32, content: &mut Vec<u8>) {
        let (mut tags, mut keys, mut count): (Vec<u32>, Vec<u8>, u32) = Default::default();
        for width in 1..=WIDEST {
            let table = self.table(width);
            for place in table.stretch(page) {
                let (id, number) = (table.id(place), table.number(place));
                if page_of(self.secrets.home(id)) != u64::from(page) {
                    continue;
                }
                let tag = tags.iter().position(|tag| *tag == number).unwrap_or_else(|| {
                    tags.push(number);
                    tags.len() - 1
                });
                keys.extend(id_bytes(id));
                keys.extend(u16::try_from(tag).unwrap_or(u16::MAX).to_le_bytes());
                table.state(place).iter().for_each(|word| keys.extend(word.to_le_bytes()));
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
    let mut write = |text: &str| {
        content.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
        content.extend(text.as_bytes());
    };
    write(tag.rule.as_str());
    write(&tag.budget.to_string());
    let limits = written_limits(tag);
    content.extend(tag.unit_cost.to_le_bytes());
    content.extend(u16::try_from(limits.len()).unwrap_or(u16::MAX).to_le_bytes());
    for limit in limits {
        content.extend(u16::try_from(limit.len()).unwrap_or(u16::MAX).to_le_bytes());
        content.extend(limit.as_bytes());
    }
}

fn write_alone(whole: &Whole, content: &mut Vec<u8>) {
    write_tag(whole.tag, content);
    for cell in &whole.cells {
        let numbers = cell.to_numbers();
        content.extend(u32::try_from(numbers.len()).unwrap_or(u32::MAX).to_le_bytes());
        numbers.iter().for_each(|number| content.extend(number.to_le_bytes()));
    }
}

/// The next text.
fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = usize::from(u16::from_le_bytes(bytes(rest)?));
    let text;
    (text, *rest) = rest.split_at_checked(length)?;
    std::str::from_utf8(text).ok()
}

/// The next few bytes.
fn bytes<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let next;
    (next, *rest) = rest.split_first_chunk()?;
    Some(*next)
}

fn id_bytes(Id { high, low }: Id) -> [u8; ID] {
    let mut bytes = [0; ID];
    bytes[..8].copy_from_slice(&high.to_be_bytes());
    bytes[8..].copy_from_slice(&low.to_be_bytes());
    bytes
}

fn id_of(bytes: &[u8]) -> Option<Id> {
    let (high, low) = bytes.split_first_chunk()?;
    Some(Id { high: u64::from_be_bytes(*high), low: u32::from_be_bytes(low.try_into().ok()?) })
}

#[cfg(test)]
mod tests;
