//! Streams over the control socket: the parts of a stream, and the line of the response.
//!
//! ```text
//! 'D', number of bytes (u32, little-endian), the bytes     any number of times
//! '{', the rest of the response
//! ```
//!
//! Laws:
//!
//! 1. Without a response a stream is not complete, and the client reports that.
//! 2. A part has at most [`PART_BYTES_MAX`] bytes. Neither side has more of a stream in memory.
//! 3. The server waits for a client as long as that reads, however slowly, also at the last part
//!    and the response. It ends when the client closes the connection, or when the volume is
//!    released, also before the first part.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Response, line_of};

/// Bytes of one part, at most.
pub(super) const PART_BYTES_MAX: usize = 256 << 10;

/// Why a stream ends early with its volume.
pub(super) const UNMOUNTED: &str = "the volume is unmounted";

/// Marks a part.
const PART: u8 = b'D';

/// A connection of a stream in the server, which waits for its client (law 3).
#[derive(Clone, Copy)]
pub(super) struct Connection<'a> {
    stream: &'a UnixStream,
    /// Can be read when the volume is released.
    ended: &'a UnixStream,
}

/// The output of a stream in the server.
pub(super) struct PartWriter<'a> {
    connection: Connection<'a>,
    part: Vec<u8>,
    is_broken: bool,
}

impl<'a> PartWriter<'a> {
    /// Creates the output on a connection, which becomes non-blocking. `ended` can be read when the
    /// volume is released.
    pub(super) fn new(stream: &'a UnixStream, ended: &'a UnixStream) -> io::Result<Self> {
        let connection = Connection::new(stream, ended)?;
        let part = Vec::with_capacity(PART_BYTES_MAX);
        Ok(Self { connection, part, is_broken: false })
    }

    /// Sends the last part and the response (law 3).
    ///
    /// # Errors
    /// As a write to the connection; also if a part was cut off, so that no response can follow.
    pub(super) fn finish(mut self, response: &Response) -> io::Result<()> {
        self.send_part()?;
        if self.is_broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.connection.send_all(&line_of(response)?)
    }

    fn send_part(&mut self) -> io::Result<()> {
        if self.part.is_empty() {
            return Ok(());
        }
        self.connection.require_mounted()?;
        let len = u32::try_from(self.part.len()).map_err(io::Error::other)?;
        let mut head = [PART; 5];
        head[1..].copy_from_slice(&len.to_le_bytes());
        let sent = self.connection.send_all(&head);
        let sent = sent.and_then(|()| self.connection.send_all(&self.part));
        self.is_broken |= sent.is_err();
        self.part.clear();
        sent
    }
}

impl<'a> Connection<'a> {
    /// Takes a connection, which becomes non-blocking. `ended` can be read when the volume is
    /// released.
    pub(super) fn new(stream: &'a UnixStream, ended: &'a UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, ended })
    }

    pub(super) fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut stream = self.stream;
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills `bytes`.
    ///
    /// # Errors
    /// `UnexpectedEof`: the client has closed the connection. The volume is released.
    pub(super) fn read_exact(&self, mut bytes: &mut [u8]) -> io::Result<()> {
        let mut stream = self.stream;
        while !bytes.is_empty() {
            match stream.read(bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => bytes = bytes.get_mut(read..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fails if the mount has ended, which the other waits notice only if the client is slow.
    pub(super) fn require_mounted(&self) -> io::Result<()> {
        if is_ended(self.ended) { Err(io::Error::other(UNMOUNTED)) } else { Ok(()) }
    }

    /// Returns whether the volume is mounted and the client connected.
    pub(super) fn goes_on(&self) -> bool {
        !is_ended(self.ended) && !is_closed(self.stream)
    }

    /// Waits until the client has read or sent something (law 3).
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let (stream, ended) = (self.stream.as_fd(), self.ended.as_fd());
        let mut events = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&stream, flags)];
        // Interrupted by a signal: the next call fails again.
        poll(&mut events, None).map_or(Ok(()), |_| {
            let is_released = !events[0].revents().is_empty();
            if is_released { Err(io::Error::other(UNMOUNTED)) } else { Ok(()) }
        })
    }
}

impl Write for PartWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if self.part.len() >= PART_BYTES_MAX {
            self.send_part()?;
        }
        let taken = bytes.len().min(PART_BYTES_MAX - self.part.len());
        self.part.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_part()
    }
}

/// Returns whether the volume of a server is released.
pub(super) fn is_ended(ended: &UnixStream) -> bool {
    has_event(PollFd::new(ended, PollFlags::IN))
}

/// Returns whether the client of a connection has closed it.
pub(super) fn is_closed(stream: &UnixStream) -> bool {
    // HUP is always reported. A client whose input ends early closes one direction.
    has_event(PollFd::new(stream, PollFlags::RDHUP))
}

fn has_event(polled: PollFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut events = [polled];
    poll(&mut events, Some(&now)).is_ok() && !events[0].revents().is_empty()
}

/// Copies the parts of a stream to `to`. Returns the first byte of the response, or the error of
/// `to`.
///
/// # Errors
/// The connection ends without a response, or has something else than parts.
pub(super) fn receive_parts(
    mut stream: &UnixStream,
    to: &mut dyn Write,
) -> io::Result<Result<u8, io::Error>> {
    stream.set_read_timeout(None)?;
    let mut part = Vec::new();
    loop {
        let mut first = [0];
        stream.read_exact(&mut first)?;
        if first[0] != PART {
            return Ok(Ok(first[0]));
        }
        let mut len = [0; 4];
        stream.read_exact(&mut len)?;
        let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
        if len > PART_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "a part is too long"));
        }
        part.resize(len, 0);
        stream.read_exact(&mut part)?;
        if let Err(error) = to.write_all(&part) {
            return Ok(Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_arrive_in_order_and_the_response_follows() {
        let (server, client) = UnixStream::pair().unwrap();
        let (_end, ended) = UnixStream::pair().unwrap();
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let mut received = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = PartWriter::new(&server, &ended).unwrap();
                writer.write_all(&bytes).unwrap();
                writer.finish(&Response::Ok(serde_json::Value::Null)).unwrap();
            });
            assert_eq!(receive_parts(&client, &mut received).unwrap().unwrap(), b'{');
        });
        assert!(received == bytes);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(&client), &mut line).unwrap();
        assert_eq!(line, "\"ok\":null}\n");
    }

    /// As with a client that pauses: the response waits for it as long as the stream does.
    #[test]
    fn the_response_waits_for_its_client() {
        let (server, client) = UnixStream::pair().unwrap();
        let (_end, ended) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut writer = PartWriter::new(&server, &ended).unwrap();
                writer.write_all(&vec![1; PART_BYTES_MAX]).unwrap();
                let long = Response::Error("e".repeat(4 << 20));
                writer.finish(&long).unwrap();
            });
            assert_eq!(receive_parts(&client, &mut Vec::new()).unwrap().unwrap(), b'{');
            // The rest of the response does not fit into the buffer of the socket.
            assert!(!writing.is_finished());
            let mut line = String::new();
            std::io::BufRead::read_line(&mut std::io::BufReader::new(&client), &mut line).unwrap();
            assert!(line.ends_with("e\"}\n"));
        });
    }

    #[test]
    fn a_client_that_closes_its_connection_is_noticed() {
        let (server, client) = UnixStream::pair().unwrap();
        let (end, ended) = UnixStream::pair().unwrap();
        (&client).write_all(b"request").unwrap();
        assert!(!is_closed(&server) && !is_ended(&ended));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_closed(&server));
        drop(client);
        drop(end);
        assert!(is_closed(&server) && is_ended(&ended));
    }

    #[test]
    fn a_stream_ends_with_its_client_and_with_the_volume() {
        let bytes = vec![0; 8 << 20];
        for client_ends in [false, true] {
            let (server, client) = UnixStream::pair().unwrap();
            let (end, ended) = UnixStream::pair().unwrap();
            let mut writer = PartWriter::new(&server, &ended).unwrap();
            let ending = std::thread::spawn(move || {
                // Once the buffer of the socket is full, the writer waits.
                (&client).read_exact(&mut [0]).unwrap();
                if client_ends { drop(client) } else { drop(end) }
            });
            assert!(writer.write_all(&bytes).is_err());
            writer.finish(&Response::Ok(serde_json::Value::Null)).unwrap_err();
            ending.join().unwrap();
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for bytes in [&b""[..], b"D", b"D\xff\xff\xff\xff", b"D\x02\0\0\0a"] {
            let (mut server, client) = UnixStream::pair().unwrap();
            server.write_all(bytes).unwrap();
            drop(server);
            assert!(receive_parts(&client, &mut Vec::new()).is_err(), "{bytes:?}");
        }
    }
}
