//! Requests about a file that the kernel may have written to in its cache, where it asks without
//! sending what it holds back.
//!
//! So it is asked for that first; and because it then waits for other threads to take it, and all
//! of them may be busy with such requests, each gets a thread of its own.

use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};

use butternut_sys::affinity;

use crate::connection;
use crate::door::{Door, Wanted, guarded};
use crate::refusal::{Answer, Refusal};
use crate::reply::Reply;
use crate::request::Request;

impl Door {
    /// Answers, in so many bytes, when the kernel has sent all that it holds of the request's file.
    /// The answer must not keep the door: who closes it waits for the thread.
    pub(super) fn answer_aside(
        &self,
        request: &Request<'_>,
        bytes: usize,
        answer: impl FnOnce(&mut Reply) -> Answer<()> + Send + 'static,
    ) -> Answer<Wanted> {
        let (device, node) = (Arc::clone(request.device), request.header.nodeid);
        self.answer_on_thread(request, bytes, move |reply| {
            connection::write_pages_back(&device, node);
            answer(reply)
        })
    }

    /// Answers, in at most so many bytes, on a thread that serves no other request. The answer must
    /// not keep the door: its owner waits for the thread when it closes the door.
    pub(super) fn answer_on_thread(
        &self,
        request: &Request<'_>,
        bytes: usize,
        answer: impl FnOnce(&mut Reply) -> Answer<()> + Send + 'static,
    ) -> Answer<Wanted> {
        let (unique, device) = (request.header.unique, Arc::clone(request.device));
        let filesystem = self.filesystem.clone();
        let work = move || {
            // The thread that starts this one stays near its caller.
            affinity::roam();
            let mut reply = Reply::new(bytes);
            let answer = guarded(&filesystem, || answer(&mut reply));
            drop(filesystem);
            connection::answer(&device, unique, answer, &mut reply);
        };
        self.start_aside(work)?;
        Ok(Wanted::Nothing)
    }

    /// Has the kernel drop what it caches of the request's file, at any time after now: it drops no
    /// page that a request is about. Where no thread can be had, it keeps them.
    pub(super) fn drop_pages_aside(&self, request: &Request<'_>) {
        let (device, node) = (Arc::clone(request.device), request.header.nodeid);
        let work = move || connection::write_pages_back(&device, node);
        self.start_aside(work).unwrap_or_default();
    }

    fn start_aside(&self, work: impl FnOnce() + Send + 'static) -> Answer<()> {
        let thread = thread::Builder::new().name("butternut-aside".into()).spawn(work);
        let thread = thread.map_err(|error| Refusal(error.raw_os_error().unwrap_or(11)))?;
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        aside.retain(|thread| !thread.is_finished());
        aside.push(thread);
        Ok(())
    }

    /// Waits until all that is answered aside is.
    pub(super) fn end_aside(aside: Vec<JoinHandle<()>>) {
        for thread in aside {
            thread.join().unwrap_or_default();
        }
    }
}
