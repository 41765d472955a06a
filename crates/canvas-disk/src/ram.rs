//! A test oracle: pages in plain memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use canvas_types::{PAGE_SIZE, PageBuf};

use crate::{DiskError, PageStore, Scratch};

pub struct RamStore {
    pages: u64,
    written: Mutex<BTreeMap<u64, Box<PageBuf>>>,
}

impl RamStore {
    pub fn new(pages: u64) -> RamStore {
        let written = Mutex::default();
        RamStore { pages, written }
    }

    fn check(&self, page: u64) -> Result<(), DiskError> {
        if page < self.pages {
            Ok(())
        } else {
            Err(DiskError::Outside)
        }
    }

    pub fn page(&self, page: u64) -> PageBuf {
        let written = self.written.lock().unwrap();
        written.get(&page).map_or([0; PAGE_SIZE], |p| **p)
    }
}

impl PageStore for RamStore {
    fn pages(&self) -> u64 {
        self.pages
    }
    fn read(&self, page: u64, out: &mut PageBuf, _: &mut Scratch) -> Result<(), DiskError> {
        self.check(page)?;
        *out = self.page(page);
        Ok(())
    }
    fn write(&self, page: u64, from: &PageBuf, _: &mut Scratch) -> Result<(), DiskError> {
        self.check(page)?;
        self.written.lock().unwrap().insert(page, Box::new(*from));
        Ok(())
    }
    fn write_part(
        &self,
        page: u64,
        at: usize,
        bytes: &[u8],
        _: &mut Scratch,
    ) -> Result<(), DiskError> {
        self.check(page)?;
        let mut written = self.written.lock().unwrap();
        let whole = written
            .entry(page)
            .or_insert_with(|| Box::new([0; PAGE_SIZE]));
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn discard(&self, page: u64) -> Result<(), DiskError> {
        self.check(page)?;
        self.written.lock().unwrap().remove(&page);
        Ok(())
    }
}
