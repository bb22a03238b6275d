//! Streams that the process of a mount receives over its control socket.
//!
//! ```text
//! process: 'R', number of bytes that it takes (u32, little-endian)      any number of times
//! client:  number of bytes (u32, little-endian), the bytes; 0 is the end of the input
//!          or, if its input has failed, the end of what it sends
//! process: the line of the response
//! ```
//!
//! Laws:
//!
//! 1. The process requests each part. So the client reads no byte of its input that the process
//!    does not want, and what follows an end command is left. Neither side has more than
//!    [`PART_BYTES_MAX`] bytes of a stream in memory.
//! 2. The process waits for a client as long as that is connected, since its input may be slow. The
//!    receive fails when the client sends no more, or when the volume is released, also in the
//!    midst of a command that copies data; the subvolume that is not complete is then deleted, if
//!    the volume is still written to. A client whose input has failed waits for the response, which
//!    comes after that. A receive that can be resumed keeps a checkpoint of the subvolume.
//! 3. No program sees a subvolume on the mount before it is complete ([`HiddenNames`]).
//! 4. The response names the subvolumes that are complete, also if the receive has failed. The
//!    process may respond with anything: the client prints it escaped.
//!
//! [`HiddenNames`]: butternut_fuse::HiddenNames

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use butternut::receive::{
    ReceiveReport, ReceiveServing, ReceivedSubvolume, StreamEnd, StreamReader,
};
use butternut::server::FilesystemExt;
use butternut::{FileKind, Filesystem};
use butternut_fuse::HiddenNames;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::stream::{Connection, PART_BYTES_MAX};
use super::{RESPONSE_BYTES_MAX, Response, line_of, receive_line};
use crate::failure::{chain, chain_with_hint};

/// Of a receive that can be resumed: how many bytes of the stream may have to be applied again.
pub(crate) const CHECKPOINT_BYTES: u64 = 64 << 20;

/// Begins a request for a part.
const WANTED: u8 = b'R';

/// What is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReceiveRequest {
    /// The inode number of the directory that the subvolumes are made in, as programs see it.
    pub(crate) directory: u64,
    pub(crate) end: ReceiveEnd,
    /// Keep what is applied if the receive is interrupted, and go on with one that was.
    #[serde(default)]
    pub(crate) is_resumed: bool,
}

/// Where the stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReceiveEnd {
    Input,
    /// At the first end command.
    Command,
}

/// What was received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReceiveResult {
    /// The complete subvolumes.
    pub(crate) subvolumes: Vec<Received>,
    /// How many subvolumes were complete before the receive that is resumed.
    #[serde(default)]
    pub(crate) present: usize,
    /// Why the receive has failed.
    pub(crate) failure: Option<String>,
    /// How many commands of the incomplete subvolume are kept.
    #[serde(default)]
    pub(crate) resumable: Option<u64>,
    /// The names of the snapshots of an interrupted receive that are not as it has made them.
    #[serde(default)]
    pub(crate) changed: Vec<Vec<u8>>,
    /// The name of the incomplete subvolume that could not be deleted, and why.
    pub(crate) unfinished: Option<(Vec<u8>, String)>,
}

/// A subvolume that is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) id: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) uuid: [u8; 16],
    pub(crate) is_snapshot: bool,
}

impl Received {
    fn of(subvolume: &ReceivedSubvolume) -> Self {
        let ReceivedSubvolume { id, name, uuid, is_snapshot, .. } = subvolume;
        Self { id: *id, name: name.clone(), uuid: *uuid, is_snapshot: *is_snapshot }
    }
}

/// Receives a stream and responds, in the process of the mount.
///
/// # Errors
/// As a write to the connection.
pub(super) fn serve(
    filesystem: &Filesystem,
    names: &HiddenNames,
    request: ReceiveRequest,
    connection: Connection<'_>,
) -> io::Result<()> {
    let received = receive(filesystem, names, request, connection);
    let response = match received
        .and_then(|result| serde_json::to_value(result).map_err(|error| error.to_string()))
    {
        Ok(value) => Response::Ok(value),
        Err(why) => Response::Error(why),
    };
    connection.send_all(&line_of(&response)?)
}

fn receive(
    filesystem: &Filesystem,
    names: &HiddenNames,
    request: ReceiveRequest,
    connection: Connection<'_>,
) -> Result<ReceiveResult, String> {
    let failed = |error: butternut::Error| chain_with_hint(&error);
    let dir = names.file_of(request.directory).ok_or("the directory does not exist any more")?;
    if filesystem.stat(dir).map_err(failed)?.kind != FileKind::Directory {
        return Err(failed(butternut::Error::NotDirectory));
    }
    filesystem.check_writable(dir).map_err(failed)?;
    // As for a volume that is not mounted: the buffer takes no more than the stream has.
    let (end, buffer_bytes) = match request.end {
        ReceiveEnd::Input => (StreamEnd::Input, PART_BYTES_MAX),
        ReceiveEnd::Command => (StreamEnd::Command, 1),
    };
    let parts = PartReader { connection, is_at_end: false };
    let mut stream = StreamReader::new(BufReader::with_capacity(buffer_bytes, parts));
    let mut report = ReceiveReport::default();
    let hide = |name: &[u8]| -> Box<dyn std::any::Any> { Box::new(names.hide(dir, name)) };
    let goes_on = || connection.goes_on();
    let every = request.is_resumed.then_some(CHECKPOINT_BYTES);
    let serving = ReceiveServing { hide: &hide, goes_on: &goes_on };
    let done = filesystem.receive_serving(dir, &mut stream, end, every, &mut report, serving);
    // A command that was interrupted does not say why.
    let ended = connection.require_mounted().map_err(|error| error.to_string());
    Ok(ReceiveResult {
        subvolumes: report.subvolumes.iter().map(Received::of).collect(),
        present: report.present,
        failure: done.err().map(|error| ended.err().unwrap_or_else(|| failed(error))),
        resumable: report.resumable,
        changed: report.changed,
        unfinished: report.unfinished.map(|left| (left.name, chain(&left.error))),
    })
}

/// The input of a stream in the process of the mount.
struct PartReader<'a> {
    connection: Connection<'a>,
    is_at_end: bool,
}

impl Read for PartReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wanted = into.len().min(PART_BYTES_MAX);
        if wanted == 0 || self.is_at_end {
            return Ok(0);
        }
        self.connection.require_mounted()?;
        let mut request = [WANTED; 5];
        let wanted_word = u32::try_from(wanted).map_err(io::Error::other)?;
        request[1..].copy_from_slice(&wanted_word.to_le_bytes());
        self.connection.send_all(&request)?;
        let mut len = [0; 4];
        self.connection.read_exact(&mut len)?;
        let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
        let part = into.get_mut(..len).filter(|_| len <= wanted);
        let part =
            part.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a part is too long"))?;
        self.connection.read_exact(part)?;
        self.is_at_end = len == 0;
        Ok(len)
    }
}

/// Why the input of a receive ends early.
pub(crate) const INTERRUPTED: &str = "a signal has ended the receive";

/// Waits until the process has sent something, or `interrupted` can be read. Returns whether only
/// the latter is the case.
fn is_interrupted(stream: &UnixStream, interrupted: BorrowedFd<'_>) -> io::Result<bool> {
    loop {
        let mut events =
            [PollFd::new(stream, PollFlags::IN), PollFd::new(&interrupted, PollFlags::IN)];
        match poll(&mut events, None) {
            Ok(_) => return Ok(events[0].revents().is_empty()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sends the input to the process of a mount, until `interrupted` can be read. Returns the line of
/// its response, and why the input has failed if it has.
///
/// # Errors
/// The connection ends without a response, or has something else.
pub(super) fn send_input(
    stream: &mut UnixStream,
    (input, interrupted): (&mut dyn Read, BorrowedFd<'_>),
    until: impl FnOnce() -> Instant,
) -> io::Result<(Vec<u8>, Option<io::Error>)> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let (mut part, mut is_at_end, mut failed) = (Vec::new(), false, None);
    loop {
        if failed.is_none() && is_interrupted(stream, interrupted)? {
            stream.shutdown(Shutdown::Write)?;
            (is_at_end, failed) = (true, Some(io::Error::other(INTERRUPTED)));
        }
        let mut first = [0];
        stream.read_exact(&mut first)?;
        if first[0] != WANTED {
            let mut line = first.to_vec();
            line.extend(receive_line(stream, RESPONSE_BYTES_MAX, until())?);
            return Ok((line, failed));
        }
        let mut wanted = [0; 4];
        stream.read_exact(&mut wanted)?;
        if failed.is_some() {
            // Requested before the process knew.
            continue;
        }
        let wanted = usize::try_from(u32::from_le_bytes(wanted)).unwrap_or(usize::MAX);
        if wanted > PART_BYTES_MAX || is_at_end {
            return Err(io::Error::new(ErrorKind::InvalidData, "more than the input is requested"));
        }
        part.resize(4 + wanted, 0);
        let read = loop {
            match input.read(&mut part[4..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                stream.shutdown(Shutdown::Write)?;
                (is_at_end, failed) = (true, Some(error));
                continue;
            }
        };
        is_at_end = read == 0;
        let len = u32::try_from(read).map_err(io::Error::other)?;
        part[..4].copy_from_slice(&len.to_le_bytes());
        // The process may have responded, and closed the connection: then the response is read.
        let sent = stream.write_all(&part[..4 + read]);
        if let Err(error) = sent
            && error.kind() != ErrorKind::BrokenPipe
        {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[test]
    fn the_client_reads_what_the_process_wants_and_no_more() {
        let ((server, mut client), (end, ended)) = (pair(), pair());
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        let mut input = &bytes[..];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let connection = Connection::new(&server, &ended).unwrap();
                let mut parts = PartReader { connection, is_at_end: false };
                let mut read = vec![0; 600_000];
                parts.read_exact(&mut read).unwrap();
                assert!(read == bytes[..600_000]);
                let line = line_of(&Response::Ok(serde_json::Value::Null)).unwrap();
                connection.send_all(&line).unwrap();
            });
            let soon = || Instant::now() + std::time::Duration::from_mins(1);
            let (line, failed) = send_input(&mut client, (&mut input, end.as_fd()), soon).unwrap();
            assert_eq!(line, b"{\"ok\":null}");
            assert!(failed.is_none());
        });
        assert_eq!(input.len(), 400_000);
    }

    #[test]
    fn a_client_whose_input_fails_waits_for_the_response() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("intended"))
            }
        }
        let ((server, mut client), (end, ended)) = (pair(), pair());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let connection = Connection::new(&server, &ended).unwrap();
                let mut parts = PartReader { connection, is_at_end: false };
                let error = parts.read(&mut [0; 5]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                let line = line_of(&Response::Ok(serde_json::Value::Null)).unwrap();
                connection.send_all(&line).unwrap();
            });
            let soon = || Instant::now() + std::time::Duration::from_mins(1);
            let (line, failed) =
                send_input(&mut client, (&mut Failing, end.as_fd()), soon).unwrap();
            assert_eq!(line, b"{\"ok\":null}");
            assert_eq!(failed.unwrap().to_string(), "intended");
        });
    }

    #[test]
    fn a_client_that_ends_or_sends_too_much_fails_the_receive() {
        for sent in [&b""[..], b"\x05\0\0\0abc", b"\xff\xff\xff\xff", b"\x06\0\0\0abcdef"] {
            let ((server, mut client), (_end, ended)) = (pair(), pair());
            client.write_all(sent).unwrap();
            drop(client);
            let connection = Connection::new(&server, &ended);
            let mut parts = PartReader { connection: connection.unwrap(), is_at_end: false };
            parts.read(&mut [0; 5]).expect_err("no part");
        }
    }

    #[test]
    fn a_receive_that_waits_for_its_client_ends_with_the_volume() {
        let ((server, client), (end, ended)) = (pair(), pair());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&client).read_exact(&mut [0; 5]).unwrap();
                drop(end);
            });
            let connection = Connection::new(&server, &ended).unwrap();
            let mut parts = PartReader { connection, is_at_end: false };
            parts.read(&mut [0; 5]).expect_err("the volume is released");
        });
    }

    #[test]
    fn a_process_that_requests_more_than_the_input_is_refused() {
        for requests in [&b"R\0\0\0\x01"[..], b"R\x01\0\0\0R\x01\0\0\0", b"R\x01", b""] {
            let ((mut server, mut client), (end, _ended)) = (pair(), pair());
            server.write_all(requests).unwrap();
            server.shutdown(std::net::Shutdown::Write).unwrap();
            let sent = send_input(&mut client, (&mut io::empty(), end.as_fd()), Instant::now);
            assert!(sent.is_err(), "{requests:?}");
        }
    }
}
