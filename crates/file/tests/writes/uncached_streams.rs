//! Streams with late workers: uncached reads, and pages that are evicted before they are read.

use crate::volume::{create, fresh, open, open_with, state};

use butternut_file::{Source, Stream};
use butternut_format::inode::InodeFlags;
use butternut_pages::CacheMode;
use butternut_sys::wait::Wait;
use rayon::ThreadPool;
use std::sync::{Arc, mpsc};

const INO: u64 = 300;

/// A volume with a file of `pages` pages and one worker, and the file's bytes.
fn opened(pages: usize) -> (Source, Arc<ThreadPool>, Vec<u8>) {
    let device = fresh(256);
    let bytes: Vec<u8> = (0..pages * 4096).map(|at| (at % 251) as u8).collect();
    let source = open(&device);
    create(&source, INO, InodeFlags::default());
    let mut file = state(&source, INO);
    file.write_at(0, &bytes).unwrap();
    file.merge(&mut |_| {}).unwrap();
    source.forest().commit().unwrap();
    drop((file, source));
    let workers = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap());
    (open_with(&device, Arc::clone(&workers)), workers, bytes)
}

/// Reads a file to its end, then once more at `last`, before the worker begins. Returns how many
/// pages stay cached.
fn left_after(pages: usize, last: Option<u64>) -> usize {
    let (source, workers, bytes) = opened(pages);
    let (release, held) = mpsc::channel::<()>();
    workers.spawn_fifo(move || held.recv().unwrap());
    let stream = Stream::new(source.clone(), state(&source, INO).view().clone());
    // The reads are not page-aligned: each begins before the pages that were to be read ahead of
    // it.
    let mut buf = vec![0; 100_000];
    let mut at = 0;
    while at < bytes.len() {
        let read = stream.read(at as u64, &mut buf, CacheMode::Uncached, Wait::Block).unwrap();
        assert_eq!(buf[..read], bytes[at..at + read]);
        at += read;
    }
    if let Some(at) = last {
        stream.read(at, &mut buf[..100], CacheMode::Uncached, Wait::Block).unwrap();
    }
    release.send(()).unwrap();
    let (end, ended) = mpsc::channel::<()>();
    workers.spawn_fifo(move || end.send(()).unwrap());
    ended.recv().unwrap();
    drop(stream);
    source.pages().counters().cached_pages
}

#[test]
fn a_readahead_job_that_runs_after_its_reader_leaves_no_pages() {
    assert_eq!(left_after(768, None), 0, "pages stay cached after uncached reads");
}

#[test]
fn a_second_reader_further_back_leaves_no_pages_of_the_first() {
    assert_eq!(left_after(400, Some(0)), 0, "pages stay cached after uncached reads");
}

#[test]
fn pages_that_are_evicted_before_they_are_read_shrink_the_window() {
    const PAGES: usize = 12_288;
    const READ_PAGES: u64 = 8;
    let (source, workers, bytes) = opened(PAGES);
    let stream = Stream::new(source.clone(), state(&source, INO).view().clone());
    let pages = source.pages().file(stream.view().key());
    let mut next = 0;
    // Reads some pages, waits for the worker, and returns how many pages it read ahead.
    let mut read = || {
        let before = source.pages().counters().readahead_pages;
        let mut buf = vec![0; 4096 * READ_PAGES as usize];
        assert_eq!(stream.read_at(next * 4096, &mut buf).unwrap(), buf.len());
        assert!(bytes[next as usize * 4096..].starts_with(&buf));
        next += READ_PAGES;
        let (end, ended) = mpsc::channel::<()>();
        workers.spawn_fifo(move || end.send(()).unwrap());
        ended.recv().unwrap();
        source.pages().counters().readahead_pages - before
    };
    let large = (0..400).map(|_| read()).max().unwrap();
    // Every second read finds pages missing that had been requested.
    for _ in 0..6 {
        pages.invalidate(&(0..PAGES as u64));
        read();
    }
    let small = (0..32).map(|_| read()).max().unwrap();
    assert!(small > 0 && small * 3 <= large, "{small} pages at once, {large} before");
}

#[test]
fn a_page_that_another_reader_reads_does_not_end_the_readahead() {
    let (source, workers, bytes) = opened(1024);
    let stream = Stream::new(source.clone(), state(&source, INO).view().clone());
    let pages = source.pages().file(stream.view().key());
    // Another reader reads some pages that will be requested.
    let others = [64, 65, 100].map(|page| pages.claim(&(page..page + 1)).unwrap());
    let mut buf = vec![0; 8 * 4096];
    for at in (0..5).map(|read| read * 8 * 4096) {
        assert_eq!(stream.read_at(at as u64, &mut buf).unwrap(), buf.len());
        assert_eq!(buf, bytes[at..at + buf.len()]);
    }
    let (end, ended) = mpsc::channel::<()>();
    workers.spawn_fifo(move || end.send(()).unwrap());
    ended.recv().unwrap();
    let absent = |page: &u64| pages.missing(*page..page + 1).is_some();
    assert_eq!((40..128).filter(absent).collect::<Vec<_>>(), [64, 65, 100]);
    drop(others);
}
