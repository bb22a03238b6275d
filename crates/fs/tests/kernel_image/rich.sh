# Runs in the root of a fresh volume, mounted read-write.
btrfs -q subvolume create sub; btrfs -q subvolume create sub/nested
btrfs -q subvolume create "name with space"
mkdir -p sub/a/b/c/d/e/f/g; echo deep > sub/a/b/c/d/e/f/g/file; echo nested > sub/nested/file
mkdir dir; for i in $(seq 300); do echo $i > dir/f$i; done
ln dir/f1 dir/hard; ln dir/f1 hard2; ln -s dir/f1 link; ln -s /dir/f2 abs
ln -s loopb loopa; ln -s loopa loopb; ln -s ../../sub/a sub/nested/up; ln -s dir dirlink
mknod char c 5 1; mknod block b 259 1048575; mkfifo pipe
perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => "sock", Listen => 1)'
setfattr -n user.foo -v bar dir; setfattr -n trusted.t -v x dir/f1
setfattr -n user.big -v "$(head -c 12000 /dev/zero | tr '\0' x)" dir/f2
for i in $(seq 50); do setfattr -n user.many$i -v $i dir/f4; done
setfacl -m u:1000:rwx dir; setfacl -d -m g:7:rx dir; setcap cap_net_raw+ep dir/f3
head -c 3000001 /dev/urandom > noise; cp --reflink=always noise clone
yes hello | head -c 5000000 > packed; truncate -s 10M sparse
echo x | dd of=sparse bs=1 seek=5000000 conv=notrunc status=none
fallocate -l 1M prealloc; echo y | dd of=prealloc bs=1 seek=100000 conv=notrunc status=none
touch -d '1960-01-01 00:00:00.5' old; touch -d '2200-01-01' future
touch nocow; chattr +C nocow; head -c 300000 /dev/urandom > nocow
mkdir many; touch many/target
for i in $(seq 1500); do ln many/target many/a_name_so_long_that_the_references_run_over_$i; done
chown 1000:1001 dir/f5; chmod 6755 dir/f5
printf 'x' > "$(printf 'not utf8 \377\376')"; touch "$(head -c 255 /dev/zero | tr '\0' n)"
btrfs -q subvolume create own; btrfs -q subvolume create own/in; chown 77:88 own; chmod 750 own
mkdir own/d; btrfs -q subvolume create own/d/deep; chown 99:99 own/d
sync
btrfs -q subvolume snapshot sub snap; btrfs -q subvolume snapshot -r sub snapro
btrfs -q subvolume snapshot . topsnap; btrfs -q subvolume snapshot own ownsnap
echo changed > sub/a/b/c/d/e/f/g/file; dd if=/dev/urandom of=noise bs=4096 count=3 seek=100 conv=notrunc status=none
rm dir/f7; mv dir/f8 dir/renamed
