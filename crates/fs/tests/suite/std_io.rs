//! The conveniences that a user of `std` expects: cursors, whole buffers, paths, `std::io::Error`.

use crate::volume::TestVolume;
use butternut::{Error, FileCursor, MountOptions, NewInode};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};

#[test]
fn a_cursor_reads_writes_and_seeks() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let file = filesystem.create_path(b"/a", &NewInode::new(0o644)).unwrap();
    let mut cursor = FileCursor::new(file);
    cursor.write_all(b"one two three").unwrap();
    assert_eq!(cursor.position(), 13);
    assert_eq!(cursor.seek(SeekFrom::Current(-5)).unwrap(), 8);
    cursor.write_all(b"THREE").unwrap();
    cursor.flush().unwrap();
    assert_eq!(cursor.seek(SeekFrom::End(-9)).unwrap(), 4);
    let mut rest = String::new();
    cursor.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "two THREE");
    assert_eq!(cursor.seek(SeekFrom::Start(100)).unwrap(), 100);
    assert_eq!(cursor.read(&mut [0; 4]).unwrap(), 0);
    let failed = cursor.seek(SeekFrom::Current(-101)).unwrap_err();
    assert_eq!((failed.kind(), cursor.position()), (ErrorKind::InvalidInput, 100));
    let filesystem = volume.reopen(filesystem);
    assert_eq!(filesystem.open_path(b"a").unwrap().len(), 13);
}

#[test]
fn whole_buffers_are_transferred_or_the_call_fails() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let file = filesystem.create_path(b"a", &NewInode::new(0o644)).unwrap();
    assert!(file.is_empty());
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    file.write_all_at(5, &bytes).unwrap();
    assert_eq!((file.len(), file.metadata().unwrap().size), (300_005, 300_005));
    let mut back = vec![0; bytes.len()];
    file.read_exact_at(5, &mut back).unwrap();
    assert!(back == bytes);
    let failed = file.read_exact_at(6, &mut back).unwrap_err();
    assert!(matches!(failed, Error::EndOfFile));
    file.read_exact_at(u64::MAX, &mut []).unwrap();
    file.write_all_at(u64::MAX, &[]).unwrap();
    assert!(file.read_exact_at(u64::MAX, &mut [0; 2]).is_err());
    assert!(file.write_all_at(u64::MAX, &[0; 2]).is_err());
}

#[test]
fn create_path_creates_a_file_or_truncates_it() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let new = NewInode::new(0o640);
    filesystem.mkdir(filesystem.root(), b"dir", &NewInode::new(0o755)).unwrap();
    let file = filesystem.create_path(b"/dir/a", &new).unwrap();
    file.write_all_at(0, b"old").unwrap();
    let again = filesystem.create_path(b"dir/a", &NewInode::new(0o777)).unwrap();
    assert_eq!((again.id(), again.len()), (file.id(), 0));
    assert_eq!(again.metadata().unwrap().mode & 0o777, 0o640);
    let root = filesystem.root();
    filesystem.symlink(root, b"link", b"dir/a", &new).unwrap();
    assert_eq!(filesystem.create_path(b"link", &new).unwrap().id(), file.id());
    filesystem.symlink(root, b"dangling", b"dir/none", &new).unwrap();
    let errno = |path: &[u8]| filesystem.create_path(path, &new).unwrap_err().errno();
    let paths = ["dangling", "dir", "dir/", "none/a", "dir/a/b", "new/", ""];
    let errnos = paths.map(|path| errno(path.as_bytes()));
    assert_eq!(errnos, [17, 21, 21, 2, 20, 2, 21]);
    volume.reopen(filesystem);
}

#[test]
fn errors_convert_into_those_of_std() {
    let volume = TestVolume::new();
    let filesystem = volume.open();
    let kind = |error: Error| std::io::Error::from(error).kind();
    assert_eq!(kind(filesystem.open_path(b"none").unwrap_err()), ErrorKind::NotFound);
    assert_eq!(kind(filesystem.open_path(b"").unwrap_err()), ErrorKind::IsADirectory);
    assert_eq!(kind(Error::EndOfFile), ErrorKind::UnexpectedEof);
    let shown = std::io::Error::from(Error::NotEmpty);
    assert_eq!(
        (shown.kind(), shown.to_string().as_str()),
        (ErrorKind::DirectoryNotEmpty, "directory not empty")
    );
    let read_only = volume.reopen(filesystem);
    let failed = read_only.create_path(b"a", &NewInode::new(0o644)).unwrap_err();
    assert_eq!(kind(failed), ErrorKind::ReadOnlyFilesystem);
    assert!(MountOptions::default().read_only);
}
