# The calls that tell of a volume, its devices and its subvolumes, on the volume mounted at argv[1],
# by root and by another user. Prints one line for each.
import errno, fcntl, os, stat, struct, sys

TOP = sys.argv[1]
FS_INFO, DEV_INFO, ROOTREF, LOOKUP = 0x8400941f, 0xd000941e, 0xd000943d, 0xd000943e
CREATE, SNAPSHOT = 0x5000940e, 0x50009401


def call(path, number, arguments):
    fd = os.open(TOP + path, os.O_RDONLY)
    buffer = bytearray(arguments)
    try:
        fcntl.ioctl(fd, number, buffer, True)
        return 'done', buffer
    except OSError as error:
        return errno.errorcode[error.errno], buffer
    finally:
        os.close(fd)


def fields(buffer, *sizes):
    """Numbers of those sizes; a size of 16 is a UUID."""
    at, found = 0, []
    for size in sizes:
        bytes = buffer[at:at + size]
        found.append(bytes if size == 16 else int.from_bytes(bytes, 'little'))
        at += size
    return found


def subvolume(path):
    at, name = os.path.split(path)
    said, _ = call(at, CREATE, struct.pack('<q4088s', 0, name.encode()))
    assert said == 'done', (path, said)


def fs_info(path, flags):
    arguments = struct.pack('<48xQ968x', flags)
    said, info = call(path, FS_INFO, arguments)
    highest, count, fsid, *sizes, csum, bytes, given, generation, metadata = fields(
        info, 8, 8, 16, 4, 4, 4, 2, 2, 8, 8, 16)
    print('FS_INFO', repr(path), flags, said, highest, count, sizes, csum, bytes, given,
          generation > 0, metadata == fsid, any(info[80:]))
    return fsid


def dev_info(path, id, uuid=bytes(16)):
    said, info = call(path, DEV_INFO, struct.pack('<Q16s4072x', id, uuid))
    id, uuid, used, total, fsid = fields(info, 8, 16, 8, 8, 16)
    name = info[3072:].rstrip(b'\0')
    if said == 'done':
        said += f' {id} {any(uuid)} {0 < used <= total} {total} {name[:1]}'
    print('DEV_INFO', repr(path), said, any(info[56:3072]))
    return uuid, fsid


def subvolumes(path, least=0):
    said, found = call(path, ROOTREF, struct.pack('<Q4088x', least))
    count = found[4088]
    words = fields(found, *[8] * (1 + 2 * count))
    print('ROOTREF', repr(path), least, said, count, words[0], words[1:9], words[-2:],
          any(found[8 + 16 * count:4088]))
    return dict(zip(words[1::2], words[2::2]))


def lookup(path, dir, id):
    said, found = call(path, LOOKUP, struct.pack('<QQ4080x', dir, id))
    if said == 'done':
        dir, id = fields(found, 8, 8)
        name, at = found[16:272].split(b'\0')[0], found[272:].split(b'\0')[0]
        said += f' {dir} {id} {name} {at}'
    print('LOOKUP', repr(path), dir, id, said)


def snapshot(source, path):
    at, name = os.path.split(path)
    fd = os.open(TOP + source, os.O_RDONLY)
    said, _ = call(at, SNAPSHOT, struct.pack('<q4088s', fd, name.encode()))
    os.close(fd)
    print('SNAP_CREATE', source, path, said)


# The inode numbers in the subvolume, in the order in which the script makes them. A mount need not
# show them as st_ino.
DIR, DEEP, CLOSED, CLOSED_DEEP, FILE, LISTED, LISTED_DEEP = range(257, 264)


def infos():
    for path in ('', '/dir', '/file', '/sub'):
        # A server of FUSE does not see the flags, and returns all that they can ask for.
        fsid = fs_info(path, 7)
        uuid, of_device = dev_info(path, 1)
        print(fsid == of_device)
        dev_info(path, 1, uuid)
        dev_info(path, 1, bytes([1] * 16))
        dev_info(path, 2)


def lookups():
    dirs = [256, DIR, DEEP, CLOSED, CLOSED_DEEP, LISTED, LISTED_DEEP]
    for path in ('', '/dir', '/dir/deep', '/file', '/sub', '/sub/in', '/many', '/closed',
                 '/listed'):
        try:
            found = subvolumes(path)
        except PermissionError:
            print('closed')
            continue
        ids = list(found)[:6] + [5, 999]
        for dir in dirs + [FILE, 9999] if os.getuid() == 0 else dirs:
            for id in ids:
                lookup(path, dir, id)
    some = subvolumes('/many', 0)
    subvolumes('/many', max(some) + 1), subvolumes('/many', max(some) - 3)
    subvolumes('/many', 2**64 - 1)


os.umask(0o022)
os.chmod(TOP, 0o755)
for path in ('/dir', '/dir/deep', '/closed', '/closed/deep'):
    os.mkdir(TOP + path)
open(TOP + '/file', 'w').close()
os.mkdir(TOP + '/listed'), os.mkdir(TOP + '/listed/deep')
for path in ('/sub', '/dir/one', '/dir/deep/two', '/closed/deep/three', '/sub/in', '/sub/in/four',
             '/many', '/listed/five', '/listed/deep/six'):
    subvolume(path)
for number in range(300):
    subvolume(f'/many/{number}')
snapshot('/sub', '/dir/snap'), snapshot('/dir', '/dir/no'), snapshot('/sub', '/dir/snap')
os.chmod(TOP + '/closed', 0o711), os.chmod(TOP + '/listed', 0o744)
for user in (0, 12345):
    if user:
        os.setgroups([]), os.setgid(user), os.setuid(user)
    infos(), lookups()
