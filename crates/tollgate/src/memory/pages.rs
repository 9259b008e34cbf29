//! The state in pages: how it is kept elsewhere, a piece at a time.
//!
//! ```text
//! page:   u16 rules, each: its limits
//!         u32 keys, each: identity 12 bytes, u16 which of the rules, state 8 bytes for each word it packs into
//! alone:  limits; for each of them: u32 numbers, each 8 bytes
//! limits: u16 limits, each: u16 bytes, its notation
//! ```
//!
//! A page says itself which limits wrote it, in their notation: it means the same to every process
//! that knows the seed. Numbers are little-endian.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::changes::page_of;
use super::hash::{Id, Secrets};
use super::shard::{Cells, Found, Shard, WIDEST, pack};
use super::{MemoryStore, shard_of};
use crate::cell::Cell;
use crate::sync::atomic::Ordering;
use crate::{Error, Limit, Limits};

/// How long the name of a page is: its shard and its place there.
const NAME: usize = 2;

/// How long the name of a key by itself is: its page's, and its identity.
const NAME_ALONE: usize = NAME + ID;

const ID: usize = 12;

const THERE_BEFORE: &str = "with a key that was there before";

impl MemoryStore {
    /// What identities are made with. As secret as the keys: who knows it can aim for collisions.
    #[must_use]
    pub const fn seed(&self) -> [u64; 2] {
        self.secrets.seed()
    }

    /// Makes identities with this seed, so that pages can be loaded that were written under it. For a
    /// store that nothing was asked of yet.
    #[must_use]
    pub fn seeded(mut self, seed: [u64; 2]) -> Self {
        self.secrets = Secrets::from_seed(seed);
        self
    }

    /// From now on takes note of what changes, for [`changed_pages`](Self::changed_pages), or no longer
    /// does: then what was noted is forgotten.
    pub fn follow(&self, followed: bool) {
        self.lones.iter().for_each(|lone| lone.follow(followed));
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
            self.take_all_home(index, &mut shard);
            shard.collect(&self.secrets, &mut pages, &mut content);
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
        // Those of global states are found with their shards, all of which are flagged now.
    }

    /// Takes pages back in, into a store that nothing was asked of yet.
    #[must_use]
    pub fn loader(&self) -> Loader<'_> {
        Loader { store: self, known: HashMap::new() }
    }

    /// Keeps the cells of a key that there is nothing of yet, just as they are: in the table of this width, or by
    /// themselves.
    pub(super) fn put(
        &self,
        id: Id,
        cells: Cells,
        limits: Limits,
        width: Option<usize>,
    ) -> Result<(), &'static str> {
        let home = self.secrets.home(id);
        let mut shard = self.shards[shard_of(home)].0.lock();
        if shard.find(id, home, limits.words()) != Found::Nowhere {
            return Err(THERE_BEFORE);
        }
        shard.next_idle = 0;
        match width {
            Some(width) => pack(&cells, shard.insert(width, id, limits, &self.secrets)),
            None => drop(shard.whole.insert(id, cells)),
        }
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Takes pages back in. Made by [`MemoryStore::loader`].
#[derive(Debug)]
pub struct Loader<'a> {
    store: &'a MemoryStore,
    /// Limits that were read before, by how they are written: pages have them in common.
    known: HashMap<Vec<u8>, Limits>,
}

impl Loader<'_> {
    /// Keeps what is on a page, just as it was, and says how many keys that were. As of the beginning
    /// of time nothing has lapsed; what has since is found out when it is next touched.
    ///
    /// # Errors
    /// [`Error::InvalidPage`] if it is none of this store's. Then the store is good for nothing more.
    pub fn load(&mut self, name: &[u8], content: &[u8]) -> Result<u64, Error> {
        let invalid = |reason| Error::InvalidPage { reason };
        if name.len() == NAME_ALONE {
            let id = id_of(&name[NAME..]).ok_or(invalid("without an identity"))?;
            let (limits, cells) = self.read_alone(content).ok_or(invalid("not a key and its state"))?;
            self.belongs(name, id)?;
            // By itself here too, even if it would pack by now: else it would be in two places there.
            self.store.put(id, cells, limits, None).map_err(invalid)?;
            return Ok(1);
        }
        let keys = self.read_page(content).ok_or(invalid("not a list of keys and their states"))?;
        keys.iter().try_for_each(|(id, _, _)| self.belongs(name, *id))?;
        let Some((first, _, _)) = keys.first() else { return Ok(0) };
        let secrets = &self.store.secrets;
        let mut shard = self.store.shards[shard_of(secrets.home(*first))].0.lock();
        shard.next_idle = 0;
        for (id, limits, words) in &keys {
            if shard.find(*id, secrets.home(*id), limits.words()) != Found::Nowhere {
                return Err(invalid(THERE_BEFORE));
            }
            let width = limits.words().unwrap_or(0);
            shard.insert(width, *id, *limits, secrets).copy_from_slice(&words[..width]);
        }
        let count = u64::try_from(keys.len()).unwrap_or(u64::MAX);
        self.store.live.fetch_add(count, Ordering::Relaxed);
        Ok(count)
    }

    /// Whether a key is one of this page.
    fn belongs(&self, name: &[u8], id: Id) -> Result<(), Error> {
        let here = name.starts_with(&page_name_of(self.store.secrets.home(id)));
        let elsewhere = Error::InvalidPage { reason: "of another store: its keys belong elsewhere" };
        here.then_some(()).ok_or(elsewhere)
    }

    /// The keys of a page.
    fn read_page(&mut self, content: &[u8]) -> Option<Vec<(Id, Limits, [u64; WIDEST])>> {
        let mut rest = content;
        let lists: Option<Vec<Limits>> =
            (0..u16::from_le_bytes(bytes(&mut rest)?)).map(|_| self.read_limits(&mut rest)).collect();
        let (lists, mut keys) = (lists?, Vec::new());
        for _ in 0..u32::from_le_bytes(bytes(&mut rest)?) {
            let id = id_of(&bytes::<ID>(&mut rest)?)?;
            let limits = *lists.get(usize::from(u16::from_le_bytes(bytes(&mut rest)?)))?;
            let mut words = [0; WIDEST];
            for word in words.get_mut(..limits.words()?)? {
                *word = u64::from_le_bytes(bytes(&mut rest)?);
            }
            keys.push((id, limits, words));
        }
        rest.is_empty().then_some(keys)
    }

    /// The cells of a key by itself.
    fn read_alone(&mut self, content: &[u8]) -> Option<(Limits, Cells)> {
        let mut rest = content;
        let limits = self.read_limits(&mut rest)?;
        let cell = |limit: &Limit| {
            let count = u32::from_le_bytes(bytes(&mut rest)?);
            let numbers: Option<Vec<u64>> =
                (0..count).map(|_| bytes(&mut rest).map(u64::from_le_bytes)).collect();
            Cell::from_numbers(*limit, &numbers?)
        };
        let cells = limits.into_iter().map(cell).collect::<Option<Cells>>()?;
        rest.is_empty().then_some((limits, cells))
    }

    fn read_limits(&mut self, rest: &mut &[u8]) -> Option<Limits> {
        let written = *rest;
        let count = u16::from_le_bytes(bytes(rest)?);
        let mut texts: SmallVec<[&[u8]; 4]> = SmallVec::new();
        for _ in 0..count {
            let length = usize::from(u16::from_le_bytes(bytes(rest)?));
            let text;
            (text, *rest) = rest.split_at_checked(length)?;
            texts.push(text);
        }
        let written = &written[..written.len() - rest.len()];
        if let Some(limits) = self.known.get(written) {
            return Some(*limits);
        }
        let limit = |text: &&[u8]| std::str::from_utf8(text).ok()?.parse().ok();
        let limits: Vec<Limit> = texts.iter().map(limit).collect::<Option<_>>()?;
        let limits = (!limits.is_empty()).then(|| Limits::from(limits))?;
        self.known.insert(written.to_vec(), limits);
        Some(limits)
    }
}

/// What a page is called.
#[derive(Clone, Copy, Debug)]
struct Name {
    bytes: [u8; NAME_ALONE],
    length: usize,
}

impl Name {
    fn of_page(shard: usize, page: u32) -> Self {
        let mut bytes = [0; NAME_ALONE];
        bytes[..NAME].copy_from_slice(&page_name(shard, page));
        Self { bytes, length: NAME }
    }

    fn of_key(home: u64, id: Id) -> Self {
        let mut bytes = [0; NAME_ALONE];
        bytes[..NAME].copy_from_slice(&page_name_of(home));
        bytes[NAME..].copy_from_slice(&id_bytes(id));
        Self { bytes, length: NAME_ALONE }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A shard, and a page there with its bits in reverse. So in the order of their names pages are spread over
/// the whole of a shard, and may be loaded into a table that is still growing: in the order of their
/// places each would fall on top of the one before.
fn page_name(shard: usize, page: u32) -> [u8; NAME] {
    [u8::try_from(shard).unwrap_or(0), u8::try_from(page).unwrap_or(0).reverse_bits()]
}

fn page_name_of(home: u64) -> [u8; NAME] {
    page_name(shard_of(home), u32::try_from(page_of(home)).unwrap_or(0))
}

impl Shard {
    /// Appends the content of everything that changed, and says where each ends.
    fn collect(&mut self, secrets: &Secrets, pages: &mut Vec<(Name, usize)>, content: &mut Vec<u8>) {
        let (changed, alone) = self.take_changes();
        for page in changed {
            self.write_page(page, secrets, content);
            pages.push((Name::of_page(self.index, page), content.len()));
        }
        for id in alone {
            if let Some(cells) = self.whole.get(&id) {
                write_alone(cells, content);
            }
            pages.push((Name::of_key(secrets.home(id), id), content.len()));
        }
    }

    /// Appends the keys of one page: nothing if there are none.
    fn write_page(&self, page: u32, secrets: &Secrets, content: &mut Vec<u8>) {
        let (mut lists, mut keys, mut count): (Vec<u32>, Vec<u8>, u32) = Default::default();
        for width in 1..=WIDEST {
            let table = self.table(width);
            for place in table.stretch(width, page) {
                let (id, number) = (table.id(width, place), table.number(width, place));
                if page_of(secrets.home(id)) != u64::from(page) {
                    continue;
                }
                let list = lists.iter().position(|list| *list == number).unwrap_or_else(|| {
                    lists.push(number);
                    lists.len() - 1
                });
                keys.extend(id_bytes(id));
                keys.extend(u16::try_from(list).unwrap_or(u16::MAX).to_le_bytes());
                table.state(width, place).iter().for_each(|word| keys.extend(word.to_le_bytes()));
                count += 1;
            }
        }
        if count > 0 {
            content.extend(u16::try_from(lists.len()).unwrap_or(u16::MAX).to_le_bytes());
            let limits = |number: &u32| Limits::of_number(*number).map_or(&[][..], Limits::as_slice);
            lists.iter().for_each(|number| write_limits(limits(number), content));
            content.extend(count.to_le_bytes());
            content.append(&mut keys);
        }
    }
}

fn write_limits(limits: &[Limit], content: &mut Vec<u8>) {
    content.extend(u16::try_from(limits.len()).unwrap_or(u16::MAX).to_le_bytes());
    for limit in limits {
        let text = limit.to_string();
        content.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
        content.extend(text.as_bytes());
    }
}

fn write_alone(cells: &Cells, content: &mut Vec<u8>) {
    write_limits(&cells.iter().map(Cell::limit).collect::<Vec<_>>(), content);
    for cell in cells {
        let numbers = cell.to_numbers();
        content.extend(u32::try_from(numbers.len()).unwrap_or(u32::MAX).to_le_bytes());
        numbers.iter().for_each(|number| content.extend(number.to_le_bytes()));
    }
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
