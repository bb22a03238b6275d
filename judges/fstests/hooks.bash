# What xfstests cannot know of Butternut: how a volume is made, and how it is checked.
#
# xfstests takes FSTYP=fuse for a filesystem that it can only mount and empty. one-test appends this
# file to common/rc, as it sees it, so that a test has a new volume for its scratch device, of the
# size that it wants, and both checkers look at it.

# Mounted, the type is fuse.butternut; the tests know it as fuse.
_fs_type() {
    _df_device "$1" | $AWK_PROG '{ print $2 }' | sed -e 's/^fuse\.butternut$/fuse/'
}

# Names are bytes, as in every btrfs.
_require_names_are_bytes() {
    :
}

# The first and the last second that a file's times can have.
_filesystem_timestamp_range() {
    echo "$((1 << 63)) $(((1 << 63) - 1))"
}

# The longest label, in bytes.
_label_get_max() {
    echo 255
}

# Makes a volume of so many bytes; what else is given is for mkfs.
butternut_mkfs() {
    local bytes="$1" mixed=()
    shift
    # The smallest volume with groups of its own for metadata, as btrfs(5) has it.
    ((bytes < 256 << 20)) && mixed=(--mixed)
    rm -f "$SCRATCH_DEV"
    truncate --size "$bytes" "$SCRATCH_DEV" || return 1
    "$BUTTERNUT" --quiet mkfs --force "${mixed[@]}" "$@" "$SCRATCH_DEV"
}

_scratch_mkfs() {
    butternut_mkfs "$BUTTERNUT_SCRATCH_BYTES" "$@"
}

_try_scratch_mkfs_sized() {
    local bytes="$1"
    # The size, and that of a block, which is always the same here.
    shift
    [[ "${1:-}" =~ ^[0-9]+$ ]] && shift
    # Smaller volumes mkfs refuses.
    ((bytes < 16 << 20)) && _notrun "a volume of $bytes bytes is too small for btrfs"
    butternut_mkfs "$bytes" "$@"
}

# Both checkers on a volume that is not mounted; what they found, on stdout.
butternut_check() {
    local image="$1" found=0
    btrfs check --check-data-csum "$image" >"$image.checked" 2>&1 || {
        echo "btrfs check found damage on $image:" && cat "$image.checked"
        found=1
    }
    "$BUTTERNUT" check --check-data-csum "$image" >"$image.checked" 2>&1 || {
        echo "butternut check found damage on $image:" && cat "$image.checked"
        found=1
    }
    rm -f "$image.checked"
    return $found
}

# Tests check their scratch device in their midst, mounted or not. After a test, one-test checks.
_check_dev_fs() {
    local device="$1" mounted options
    [[ "$device" == "$SCRATCH_DEV" ]] || return 0
    mounted="$(findmnt -rncv -S "$device" -o TARGET)"
    options="$MOUNT_OPTIONS"
    # umount(8) takes the helper, which waits for the volume, where it is given the device: of a
    # directory it knows no more than that it is FUSE's.
    [[ -n "$mounted" ]] && { _unmount "$device" || return 1; }
    butternut_check "$device" >>"$seqres.full" || {
        _log_err "damage found on $device"
        return 1
    }
    # shellcheck disable=SC2086 # several words
    [[ -z "$mounted" ]] || _mount -t fuse.butternut $options "$device" "$mounted"
}
