# Shared by tools/rdma-vm and the two builders beside this file; sourced, never run.
# shellcheck shell=bash

# The kernels rdma-vm knows, by the Debian suite they come from (versions move, suites do not).
# shellcheck disable=SC2034  # used by the scripts that source this file
RDMA_VM_KERNELS=(bookworm trixie trixie-backports)

say() { printf 'rdma-vm: %s\n' "$*" >&2; }

# Everything that is the harness's fault, not the command's, ends here: one sentence, status 125.
die() {
  say "$@"
  exit 125
}

# The suite whose userland goes with a kernel.
userland_of() {
  case $1 in
    bookworm) echo bookworm ;;
    *) echo trixie ;;
  esac
}

# Prints the addresses of the Debian archives this machine's apt is set up with, best guess first.
# apt itself is asked (and downloads nothing), so that both of its source formats are understood.
debian_archives() {
  if [[ -n ${RPMA_VM_MIRROR:-} ]]; then
    printf '%s\n' "${RPMA_VM_MIRROR%/}"
    return
  fi
  apt-get update --print-uris 2>/dev/null |
    sed -nE "s!^'((https?|file|copy):[^']*[^/'])/+dists/(bookworm|trixie|forky|sid|oldstable|stable|testing|unstable)(-updates|-backports)?/InRelease'.*!\1!p" |
    awk '!seen[$0]++'
}

# Finds the first of those archives that has SUITE, signed by Debian, and leaves apt's indexes of it
# under DIR. Sets ARCHIVE to its address and APT_PRIVATE to the options that make apt-get and
# apt-cache see that suite and nothing else, without touching the machine's own apt state.
open_suite() {
  local suite=$1 dir=$2
  mkdir -p "$dir"/{sources,lists/partial,cache/archives/partial}
  APT_PRIVATE=(
    -o "Dir::Etc::sourcelist=/dev/null"
    -o "Dir::Etc::sourceparts=$dir/sources"
    -o "Dir::State::lists=$dir/lists"
    -o "Dir::Cache=$dir/cache"
    # The folders are ours alone, so apt's download user could not write to them.
    -o "APT::Sandbox::User=root"
    -o "APT::Get::List-Cleanup=false"
    -o "Acquire::Languages=none"
    -o "Acquire::Retries=3"
  )
  while read -r ARCHIVE; do
    printf '%s\n' 'Types: deb' "URIs: $ARCHIVE" "Suites: $suite" 'Components: main' \
      "Signed-By: $DEBIAN_KEYRING" >"$dir/sources/suite.sources"
    # Any error counts: by default apt only warns when an archive does not answer.
    if apt-get "${APT_PRIVATE[@]}" -qq --error-on=any update >"$dir/update.log" 2>&1; then
      return
    fi
  done < <(debian_archives)
  [[ -s $dir/update.log ]] && cat "$dir/update.log" >&2
  die "could not read the suite $suite from ${RPMA_VM_MIRROR:-the apt sources of this machine}; name one with --mirror URI or RPMA_VM_MIRROR"
}

DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
