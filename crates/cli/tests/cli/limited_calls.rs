//! Calls of users that wait, and what they are no obstacle to: writes, and calls of other users.

use super::image::kernel_tests_enabled;
use super::mount_end::run_in_namespace;
use super::mount_end_hung::run_on_device_that_can_hang;

/// The numbers of lseek(2), ioctl(2) and fallocate(2).
const SYSTEM_CALLS: [u32; 3] =
    if cfg!(target_arch = "x86_64") { [8, 16, 285] } else { [62, 29, 47] };

/// The kernel holds the lock of a file while lseek(2) looks for a hole. A user that may only read
/// the file has begun as many such calls on files of its own as may run, and they do not end.
#[test]
fn a_file_is_written_while_a_user_that_reads_it_has_any_number_of_seeks() {
    if !kernel_tests_enabled("a_file_is_written_while_a_user_that_reads_it_has_any_number_of_seeks")
    {
        return;
    }
    let fallocate = SYSTEM_CALLS[2];
    // The search for data in the file reads blocks that are not in memory.
    let make = format!(
        r#"truncate -s 512M m1/inner.img; $B mkfs -q m1/inner.img; $B mount m1/inner.img m2
        I=$(getfattr --only-values -n butternut.daemon m2)
        $B subvolume create m2/s; truncate -s 64M m2/s/file; chown 12345 m2/s/file
        perl -e 'open(my $f, "+<", "m2/s/file") or die $!;
            for (0..3999) {{ syscall({fallocate}, fileno($f), 1, 8192 * $_, 4096) == 0 or die $! }}'
        for n in $(seq 17); do $B subvolume snapshot m2/s m2/s$n; done >ignored
        $B umount -q m2; ended $I"#
    );
    // The first seek that returns is above the limit. Prints what the log has then.
    // Files that no program writes are searched in a thread, too: few workers serve all requests.
    let seek = r#"use POSIX; $| = 1; POSIX::setuid(12345); my $mode = shift;
        my @files = map { open(my $f, $mode, "m2/s$_/file") or die "$_: $!"; $f } 1..17;
        open(my $log, "<", "m2/log") or die $!;
        print "open\n"; <STDIN>;
        for my $f (@files) { next if fork; sysseek($f, 0, 3); POSIX::_exit(0) }
        wait; print sysseek($log, 0, 3), "\n", sysseek($log, 0, 4), "\n";"#;
    for mode in ["+<", "<"] {
        let script = format!(
            "echo text >m2/log; chmod 644 m2/log; exec 7>>m2/log; mkfifo go
             perl -e '{seek}' '{mode}' <go >said & exec 8>go
             for n in $(seq 400); do grep -q open said && break; sleep .05; done
             kill -STOP $O; echo >&8
             for n in $(seq 400); do [ $(wc -l <said) = 3 ] && break; sleep .05; done; cat said
             (echo more >&7; echo written >written) & W=$!
             for n in $(seq 400); do [ -e written ] && break; sleep .05; done
             cat written || true
             kill -CONT $O; wait $W; exec 7>&- 8>&-; cat m2/log"
        );
        let output = run_on_device_that_can_hang(&make, "allow_other", &script);
        let wanted = ": mounted (\nopen\n0 but true\n5\nwritten\ntext\nmore\n";
        assert_eq!(output, wanted, "{mode}");
    }
}

/// Snapshots walk through all open files of their source, and commit.
#[test]
fn short_calls_of_a_user_do_not_wait_for_any_number_of_snapshots() {
    if !kernel_tests_enabled("short_calls_of_a_user_do_not_wait_for_any_number_of_snapshots") {
        return;
    }
    let ioctl = SYSTEM_CALLS[1];
    let make = "truncate -s 512M m1/inner.img; $B mkfs -q m1/inner.img
        $B mount m1/inner.img m2; I=$(getfattr --only-values -n butternut.daemon m2)
        for n in 1 2 3 4; do
            mkdir m2/d$n; $B subvolume create m2/d$n/s; chown $n m2/d$n m2/d$n/s
        done >ignored
        $B umount -q m2; ended $I";
    let snapshot = r#"use POSIX;
        for my $user (1..4) {
            open(my $dir, "<", "m2/d$user") or die $!; open(my $s, "<", "m2/d$user/s") or die $!;
            for my $n (1..16) {
                next if fork; POSIX::setuid($user);
                my $call = pack("q Q x40 Z4040", fileno($s), 0, "n$n");
                POSIX::_exit(ioctl($dir, 0x50009417, $call) ? 0 : $! + 0)
            }
        }
        my %ended; while (wait > 0) { $ended{$? >> 8}++ }
        print map { "$_ $ended{$_}\n" } keys %ended"#;
    // Looks up the subvolume of a directory.
    let look_up = r#"use POSIX; POSIX::setuid(12345); open(my $dir, "<", "m2") or die $!;
        my $call = pack("QQ x4080", 0, 256); ioctl($dir, 0xd0009412, $call) or die $!;
        my $id = 0; $id = $id * 256 + ord for reverse split //, substr($call, 0, 8);
        print "$id\n""#;
    let script = format!(
        "ls -lR m2 >ignored; echo late >m2/late; kill -STOP $O
         perl -e '{snapshot}' >made & M=$!
         calling() {{ cat /proc/[0-9]*/syscall 2>ignored | grep -c '^{ioctl} .* 0x50009417 '; }}
         for n in $(seq 400); do [ $(calling) = 64 ] && break; sleep .05; done; calling
         (perl -e '{look_up}' >found) & F=$!
         for n in $(seq 400); do [ -s found ] && break; sleep .05; done
         cat found; kill -CONT $O; wait $M $F; cat made | cut -d ' ' -f 1; ls m2/d3 | wc -l"
    );
    let output = run_on_device_that_can_hang(make, "allow_other", &script);
    assert_eq!(output, ": mounted (\n64\n5\n0\n17\n");
}

/// A deleted subvolume is not freed while a program has a file of it open.
#[test]
fn any_number_of_waits_for_a_deleted_subvolume_leaves_other_calls() {
    if !kernel_tests_enabled("any_number_of_waits_for_a_deleted_subvolume_leaves_other_calls") {
        return;
    }
    // Prints the errno of each call; 0 of one whose process was killed.
    let wait = r#"use POSIX; open(my $root, "<", "m1") or die $!;
        for my $user (20001..20008) { for (1..36) {
            next if fork; POSIX::setuid($user); my $call = pack("QLL", 0, 1, 0);
            POSIX::_exit(ioctl($root, 0x40109441, $call) ? 0 : $! + 0)
        } }
        my %ended; while (wait > 0) { $ended{$? >> 8}++ }
        print map { "$_ $ended{$_}\n" } sort { $a <=> $b } keys %ended"#;
    // Creates subvolumes, as a user that waits as well, and makes one read-only.
    let create = r#"use POSIX; POSIX::setuid(20001); open(my $dir, "<", "m1/dir") or die $!;
        for my $n (1..40) {
            my $call = pack("x8 Z4088", "n$n"); ioctl($dir, 0x5000940e, $call) or die $!
        }
        open(my $made, "<", "m1/dir/n1") or die $!;
        my $flags = pack("Q", 2); ioctl($made, 0x4008941a, $flags) or die $!; print "made\n""#;
    let output = run_in_namespace(&format!(
        r"$B mount -o allow_other own.img m1; D=$(daemon); mkdir m1/dir; chown 20001 m1/dir
        $B subvolume create m1/s >ignored; echo text >m1/s/file; exec 7<m1/s/file
        $B subvolume delete m1/s >ignored
        perl -e '{wait}' 7<&- >waited & P=$!
        threads() {{ cat /proc/$D/task/*/comm 2>ignored | grep -c butternut-defer || true; }}
        for n in $(seq 1200); do [ $(threads) = 256 ] && break; sleep .05; done; threads
        perl -e '{create}'
        kill $(ps -o pid= --ppid $P); wait $P; cat waited; exec 7<&-; $B umount m1"
    ));
    assert_eq!(output, "256\nmade\n0 256\n11 32\n");
}
