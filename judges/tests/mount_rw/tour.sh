# Runs one of each operation in $1. Its output and the resulting tree are compared.
set -eu
umask 022
cd "$1"
chmod 755 .
said() { echo "$?"; }
mkdir -p a/b/c sticky setgid && chmod 1777 sticky && chown 0:100 setgid && chmod 2775 setgid
echo one >a/one && echo two >>a/one && : >a/empty
head -c 100000 /dev/zero | tr '\0' x >a/large
printf y | dd of=a/large bs=1 seek=54321 conv=notrunc status=none
truncate -s 5000 a/large && truncate -s 300000 a/large
ln a/one a/b/hard && ln -s ../one a/b/soft && mkfifo a/fifo
mknod a/null c 1 3 && mknod a/disk b 300 70000
chown 1000:1001 a/one && chown -h 7:8 a/b/soft
chmod 6755 a/empty && chown 1:1 a/empty
touch -d '2001-02-03 04:05:06.789 UTC' a/one && touch -h -d '1969-12-31 23:00 UTC' a/b/soft
mv a/large a/b/moved && mv a/b/c a/d && echo over >a/over && mv a/over a/one
ln a/b/hard a/b/third && rm a/b/hard
(cd a && rmdir empty 2>/dev/null; rm d 2>/dev/null; rmdir b 2>/dev/null; said) || true
fallocate -l 200000 a/set && fallocate -n -o 300000 -l 100000 a/set
echo data | dd of=a/set bs=1 seek=100000 conv=notrunc status=none
fallocate -p -o 8192 -l 65536 a/set && fallocate -z -o 150000 -l 100000 a/set
cp --reflink=never --sparse=never a/b/moved a/copy
setfattr -n user.short -v value a/one && setfattr -n user.long -v "$(head -c 3000 /dev/zero | tr '\0' z)" a/one
setfattr -n user.gone -v value a/one && setfattr -x user.gone a/one
setfattr -n trusted.t -v 0x0001ff a/d
setfacl -m u:1000:rwx,g:50:r a/copy && setfacl -d -m u:1000:rw a/d
mkdir a/d/inherits && echo inherits >a/d/file && (umask 077 && echo private >a/d/private)
echo group >setgid/file && mkdir setgid/dir
touch a/nocow && chattr +C a/nocow && echo nocow >a/nocow
touch a/fixed && chattr +i a/fixed
{ echo x >a/fixed || rm a/fixed || mv a/fixed a/b || chmod 600 a/fixed || ln a/fixed a/l; } 2>/dev/null && echo changed
chattr -i a/fixed && echo fixed >a/fixed
touch a/grows && chattr +a a/grows && echo one >>a/grows && echo two >>a/grows
{ echo x >a/grows || truncate -s 0 a/grows || rm a/grows; } 2>/dev/null && echo changed
lsattr a/grows a/nocow | cut -c 1-22
chattr -a a/grows
chattr +d a/one && chattr +c a/d && lsattr -d a/d a/one | cut -c 1-22 && chattr -c a/d
long="$(head -c 255 /dev/zero | tr '\0' n)"
mkdir a/many && for i in $(seq 300); do echo "$i" >"a/many/file-$i"; done
echo long >"a/$long" && { : >"a/${long}n"; } 2>/dev/null || echo too long
for i in $(seq 2 3 300); do rm "a/many/file-$i"; done
exec 5>a/unlinked && rm a/unlinked && echo gone >&5 && exec 5>&-
exec 6<>a/kept && echo kept >&6 && mv a/kept a/moved-while-open && echo more >&6 && exec 6>&-
mkdir a/cwd && (cd a/cwd && rmdir ../cwd && ls -a . && stat -c %h .)
dd if=/dev/zero of=a/odd bs=4097 count=33 status=none && dd if=/dev/urandom of=a/b/r bs=1 count=0 seek=10M status=none
find . -name 'file-1*' | wc -l
