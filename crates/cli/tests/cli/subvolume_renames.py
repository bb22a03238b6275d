# Renames with subvolumes on the volume mounted at argv[1]: every kind of source onto every kind of
# target, with every flag, in one directory and across directories and subvolumes. Prints one line
# for each, with what the two names refer to afterwards.
import ctypes, errno, fcntl, os, stat, struct, sys, time

TOP = sys.argv[1]
LIBC = ctypes.CDLL(None, use_errno=True)
FLAGS = {'': 0, 'noreplace': 1, 'exchange': 2, 'whiteout': 4}
CREATE, SNAPSHOT, SET_FLAGS, GET_INFO = 0x5000940e, 0x50009417, 0x4008941a, 0x81f8943c


def call(path, number, arguments):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, number, bytearray(arguments), True)
    finally:
        os.close(fd)


def subvolume(path):
    at, name = os.path.split(path)
    call(at, CREATE, struct.pack('<q4088s', 0, name.encode()))


def snapshot(source, path):
    at, name = os.path.split(path)
    fd = os.open(source, os.O_RDONLY)
    call(at, SNAPSHOT, struct.pack('<qQQ32x4040s', fd, 0, 0, name.encode()))
    os.close(fd)


def set_read_only(path, to):
    call(path, SET_FLAGS, struct.pack('<Q', 2 if to else 0))


def tree(fd):
    info = bytearray(504)
    fcntl.ioctl(fd, GET_INFO, info, True)
    return int.from_bytes(info[:8], 'little')


def rename(a, b, flags):
    if LIBC.renameat2(-100, a.encode(), -100, b.encode(), flags):
        raise OSError(ctypes.get_errno(), '')


def directory(path):
    os.mkdir(path)


def full(make):
    def made(path):
        make(path)
        with open(path + '/inside', 'w') as file:
            file.write('inside')
    return made


def nested(path):
    os.mkdir(path)
    subvolume(path + '/nested')


def file(path):
    with open(path, 'w') as file:
        file.write(os.path.basename(path) * 100)


# A snapshot of a subvolume has an empty directory in the place of each subvolume in it.
MAKE = {
    'nothing': None, 'file': file, 'link': lambda path: os.symlink('to', path), 'dir': directory,
    'fulldir': full(directory), 'nestdir': nested, 'sub': subvolume, 'fullsub': full(subvolume),
}


def shown(path):
    """Returns what a name refers to."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return errno.errorcode[error.errno]
    kind = {stat.S_IFREG: 'file', stat.S_IFLNK: 'link', stat.S_IFDIR: 'dir',
            stat.S_IFCHR: 'char'}[stat.S_IFMT(found.st_mode)]
    words = [kind, str(found.st_uid), str(found.st_nlink)]
    if kind == 'char':
        words.append(str(found.st_rdev))
    if kind == 'file':
        words.append(str(found.st_size))
    if kind == 'dir':
        fd, above = os.open(path, os.O_RDONLY), os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            if tree(fd) != tree(above):
                words[0] = 'sub'
        except OSError as error:
            assert error.errno in (errno.ENOTTY, errno.ENOENT), path
            words[0] = 'placeholder'
        words.append(','.join(sorted(os.listdir(fd))))
        same = os.stat('..', dir_fd=fd).st_ino == os.fstat(above).st_ino
        words.append('' if same else 'wrong parent')
        os.close(fd), os.close(above)
    return ' '.join(filter(None, words))


def times(path):
    found = os.stat(path)
    return found.st_mtime_ns, found.st_ctime_ns


def one(kinds, dirs, name, flags):
    paths = [f'{dir}/{name}{side}' for dir, side in zip(dirs, 'ab')]
    held = []
    for number, (kind, path) in enumerate(zip(kinds, paths)):
        if MAKE[kind]:
            MAKE[kind](path)
            os.chown(path, 1000 + number, 0, follow_symlinks=False)
            if kind != 'link':
                held.append(os.open(path, os.O_RDONLY))
    # The clock of inodes may stand still for some milliseconds.
    time.sleep(0.005)
    before = [times(dir) for dir in dirs]
    sizes = [os.stat(dir).st_size for dir in dirs]
    try:
        rename(*paths, FLAGS[flags])
        said = 'done'
    except OSError as error:
        said = errno.errorcode[error.errno]
    after = [[new != old for new, old in zip(times(dir), was)] for dir, was in zip(dirs, before)]
    sizes = [os.stat(dir).st_size - size for dir, size in zip(dirs, sizes)]
    # What is open is still what it was, and has the path of its new name.
    open_now = []
    for fd in held:
        now = os.readlink(f'/proc/self/fd/{fd}')
        found = os.fstat(fd)
        listed = stat.S_ISDIR(found.st_mode) and ','.join(sorted(os.listdir(fd)))
        open_now.append(f'{now[len(TOP):]} {found.st_uid} {found.st_nlink} {listed or ""}')
        os.close(fd)
    said += f' {after} {sizes}' if said == 'done' else f' {any(sum(after, []))}'
    return f'{said} | {shown(paths[0])} | {shown(paths[1])} | {"; ".join(open_now)}'


def table():
    for dir in ('one', 'two'):
        os.mkdir(f'{TOP}/{dir}')
    subvolume(f'{TOP}/other')
    places = {'here': ('one', 'one'), 'across': ('one', 'two'), 'between': ('one', 'other'),
              'out': ('other', 'one')}
    count = 0
    for place, dirs in places.items():
        dirs = [f'{TOP}/{dir}' for dir in dirs]
        for flags in FLAGS:
            for source in MAKE:
                for target in MAKE:
                    if source == 'nothing' and target == 'nothing':
                        continue
                    if not any('sub' in kind for kind in (source, target)):
                        # Others are refused where they would leave their subvolume.
                        if place in ('here', 'across') or flags in ('noreplace', 'whiteout'):
                            continue
                    count += 1
                    said = one((source, target), dirs, f'{count}', flags)
                    print(f'{place} {source} {target} {flags}: {said}'.replace(TOP, ''))


def say(what, change, *paths):
    try:
        change()
        said = 'done'
    except OSError as error:
        said = errno.errorcode[error.errno]
    print(f'{what}: {said} | {" | ".join(shown(TOP + path) for path in paths)}')


def moved(what, a, b, flags=0):
    say(what, lambda: rename(TOP + a, TOP + b, flags), a, b)


def as_user(what, a, b, flags=0):
    def change():
        child = os.fork()
        if child == 0:
            os.setgroups([]), os.setgid(12345), os.setuid(12345)
            try:
                rename(TOP + a, TOP + b, flags)
                os._exit(0)
            except OSError as error:
                os._exit(error.errno)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            raise OSError(status, '')
    say(what, change, a, b)


def ancestors():
    subvolume(TOP + '/outer'), subvolume(TOP + '/outer/inner'), os.mkdir(TOP + '/outer/dir')
    subvolume(TOP + '/outer/inner/deep'), subvolume(TOP + '/beside')
    os.mkdir(TOP + '/outer/dir/below'), subvolume(TOP + '/outer/dir/below/sub')
    for flags in (0, 2):
        moved(f'into itself {flags}', '/outer', '/outer/inner/new', flags)
        moved(f'onto its child {flags}', '/outer', '/outer/inner', flags)
        moved(f'onto its parent {flags}', '/outer/inner', '/outer', flags)
        moved(f'onto its grandchild {flags}', '/outer', '/outer/inner/deep', flags)
        moved(f'dir onto a subvolume below {flags}', '/outer/dir', '/outer/dir/below/sub', flags)
        moved(f'subvolume onto a dir above {flags}', '/outer/dir/below/sub', '/outer/dir', flags)
        moved(f'onto itself {flags}', '/outer/inner', '/outer/inner', flags)
    moved('nested and top', '/outer/inner', '/beside', 2)
    print(shown(TOP + '/beside'), '|', shown(TOP + '/beside/deep'))
    moved('back again', '/outer/inner', '/beside', 2)


def read_only():
    subvolume(TOP + '/ro'), subvolume(TOP + '/ro/sub'), os.mkdir(TOP + '/ro/dir')
    subvolume(TOP + '/rosub'), subvolume(TOP + '/rw'), os.mkdir(TOP + '/place')
    subvolume(TOP + '/place/rw'), os.mkdir(TOP + '/place/dir'), os.mkdir(TOP + '/dir')
    file(TOP + '/file')
    set_read_only(TOP + '/ro', True), set_read_only(TOP + '/rosub', True)
    moved('within read-only', '/ro/sub', '/ro/dir')
    moved('exchange within read-only', '/ro/sub', '/ro/dir', 2)
    moved('out of read-only', '/ro/sub', '/place/new')
    moved('into read-only', '/rw', '/ro/new')
    moved('exchange out of read-only', '/ro/sub', '/rw', 2)
    moved('exchange into read-only', '/rw', '/ro/sub', 2)
    moved('file into read-only', '/file', '/ro/new')
    moved('exchange of a read-only one', '/rosub', '/rw', 2)
    moved('and back', '/rosub', '/rw', 2)
    moved('across with a read-only one', '/rosub', '/place/rw', 2)
    moved('across with a read-only target', '/place/rw', '/rosub', 2)
    moved('read-only one over a directory', '/rosub', '/dir')
    moved('over a directory elsewhere', '/dir', '/place/dir')
    set_read_only(TOP + '/ro', False)


def placeholders():
    subvolume(TOP + '/source'), subvolume(TOP + '/source/n1'), subvolume(TOP + '/source/n2')
    subvolume(TOP + '/source/n3')
    snapshot(TOP + '/source', TOP + '/copy')
    os.mkdir(TOP + '/copy/dir'), subvolume(TOP + '/copy/sub'), file(TOP + '/copy/file')
    full(directory)(TOP + '/copy/full'), subvolume(TOP + '/fromtop')
    moved('placeholder', '/copy/n1', '/copy/new')
    moved('placeholder over a directory', '/copy/n1', '/copy/dir')
    moved('placeholder out', '/copy/n1', '/new')
    moved('file over a placeholder', '/copy/file', '/copy/n1')
    moved('directory over a placeholder', '/copy/full', '/copy/n1')
    moved('subvolume over a placeholder', '/copy/sub', '/copy/n2')
    moved('subvolume over a placeholder from elsewhere', '/fromtop', '/copy/n3')
    print(sorted(os.listdir(TOP + '/copy')))


def users():
    os.mkdir(TOP + '/sticky'), os.mkdir(TOP + '/open'), os.mkdir(TOP + '/closed')
    for name in ('sticky/own', 'sticky/other', 'open/own', 'open/other', 'closed/own'):
        subvolume(f'{TOP}/{name}')
        if name.endswith('own'):
            os.chown(f'{TOP}/{name}', 12345, 12345)
    os.chmod(TOP + '/open', 0o777), os.chmod(TOP + '/sticky', 0o1777)
    as_user('user exchanges', '/open/own', '/open/other', 2)
    as_user('user exchanges back', '/open/own', '/open/other', 2)
    as_user('user exchanges in sticky', '/sticky/own', '/sticky/other', 2)
    as_user('user exchanges with closed', '/open/own', '/closed/own', 2)
    as_user('user exchanges across', '/open/own', '/sticky/own', 2)
    as_user('user exchanges what it may not write', '/open/other', '/sticky/own', 2)


os.umask(0o022)
os.chmod(TOP, 0o755)
table(), ancestors(), read_only(), placeholders(), users()
