# shellcheck shell=bash disable=SC2016
# Sourced by the scripts that need something installed. `microscale_need THING…` goes ahead in silence when every THING is
# there; otherwise it says what is missing and installs it by the system's packages, as root or with sudo. With neither,
# it ends with what to install, or goes on where CMake can fetch what is missing.

say() { printf 'microscale: %s\n' "$*"; }
die() { printf 'microscale: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# The things that can be needed: how each is recognized, and the Debian package that brings it.
is_there() {
  case $1 in
    compiler) have "${CXX:-c++}" ;;
    cmake) have cmake && at_least 3.25 "$(cmake --version | sed -n '1s/[^0-9]*//p')" ;;
    ninja) have ninja ;;
    clang) have clang++ ;;
    lld) have ld.lld ;;
    sanitizers) clang++ -fsanitize=address,undefined -x c++ -o /dev/null - <<<'int main() {}' >/dev/null 2>&1 ;;
    clang-tidy | cppcheck | doxygen) have "$1" ;;
    pkg-config) have pkg-config ;;
    aarch64-compiler) have aarch64-linux-gnu-g++ ;;
    qemu) have qemu-aarch64 || have qemu-aarch64-static ;;
    debootstrap) have debootstrap ;;
    python3) have python3 ;;
    benchmark) has_header benchmark/benchmark.h ;;
    fmt) has_header fmt/format.h ;;
    openblas) has_header cblas.h ;;
    onednn) has_header oneapi/dnnl/dnnl.hpp ;;
    eigen) has_header eigen3/Eigen/Core ;;
    catch2) "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1 <<'END' ;;
#include <catch2/catch_version_macros.hpp>
#if CATCH_VERSION_MAJOR < 3 || (CATCH_VERSION_MAJOR == 3 && CATCH_VERSION_MINOR < 4)
#error too old
#endif
END
  esac
}

has_header() { "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1 <<<"#include <$1>"; }

package_of() {
  case $1 in
    benchmark) echo libbenchmark-dev ;;
    fmt) echo libfmt-dev ;;
    openblas) echo libopenblas-dev ;;
    onednn) echo libdnnl-dev ;;
    eigen) echo libeigen3-dev ;;
    compiler) echo g++ ;;
    sanitizers) echo "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev" ;; # of the clang that is there
    ninja) echo ninja-build ;;
    aarch64-compiler) echo g++-aarch64-linux-gnu ;;
    qemu) echo qemu-user ;;
    *) echo "$1" ;;
  esac
}

at_least() { [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

# What CMake fetches where it is not installed.
is_fetched() { [[ " catch2 benchmark fmt " == *" $1 "* ]]; }

can_install() { have apt-get && { [[ $EUID -eq 0 ]] || have sudo; }; }

microscale_need() {
  local thing missing=() packages=()
  for thing in "$@"; do
    is_there "$thing" || missing+=("$thing")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0

  if ! can_install; then
    do_without "${missing[@]}"
    return
  fi
  say "missing here: ${missing[*]}"
  apt_get update || say "apt-get update had trouble; going on with the package lists that are there"
  for thing in "${missing[@]}"; do
    [[ $thing == catch2 ]] || packages+=("$(package_of "$thing")")
  done
  if [[ ${#packages[@]} -gt 0 ]]; then
    say "installing ${packages[*]}"
    apt_get install "${packages[@]}" || die "apt-get could not install ${packages[*]}"
  fi
  if [[ " ${missing[*]} " == *" catch2 "* ]]; then
    install_catch2
  fi

  for thing in "${missing[@]}"; do
    is_there "$thing" || is_fetched "$thing" || die "$thing is still missing, or too old (CMake 3.25 is needed)"
  done
}

# Where nothing can be installed: ends with one line that says what to install, unless CMake can fetch all of it.
do_without() {
  local thing packages=() needed=false
  for thing in "$@"; do
    packages+=("$(package_of "$thing")")
    is_fetched "$thing" || needed=true
  done
  if ! $needed; then
    say "not installed, so CMake will fetch it: $*"
  elif have apt-get; then
    die "missing here: $*; as root, run: apt-get install ${packages[*]} (CMake ≥ 3.25, Catch2 ≥ 3.4)"
  else
    die "missing here: $*; install what Debian calls ${packages[*]} (CMake ≥ 3.25, Catch2 ≥ 3.4)"
  fi
}

# apt-get without questions: `apt_get VERB …`.
apt_get() {
  local as_root=()
  [[ $EUID -eq 0 ]] || as_root=(sudo)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -y -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 --no-install-recommends "$@" </dev/null
}

# Catch2 3 is an ordinary package from Debian 13 on; Debian 12 has it among its backports.
install_catch2() {
  local codename suite
  if at_least 3.4 "$(apt-cache policy catch2 | sed -n 's/ *Candidate: //p')"; then
    say "installing catch2"
    apt_get install catch2
    return
  fi

  codename=$(. /etc/os-release && [[ $ID == debian ]] && echo "$VERSION_CODENAME")
  if [[ -z $codename ]]; then
    say "this system packages no Catch2 3: CMake will fetch it"
    return
  fi
  suite=$codename-backports
  add_suite "$codename" "$suite"
  say "installing catch2 from $suite"
  apt_get install -t "$suite" catch2 || say "apt-get could not install it: CMake will fetch it"
}

# Makes SUITE known to apt, from the mirror that serves this system's CODENAME.
add_suite() {
  local codename=$1 suite=$2 mirror file=/etc/apt/sources.list.d/microscale-backports.sources
  if apt_suites | awk -v suite="$suite" '$1 == suite { found = 1 } END { exit !found }'; then
    return
  fi
  mirror=$(debian_mirror "$codename")
  say "adding $suite from $mirror ($file)"
  {
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n' "$mirror" "$suite"
    if [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]]; then
      echo 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg'
    fi
  } | if [[ $EUID -eq 0 ]]; then cat >"$file"; else sudo tee "$file" >/dev/null; fi
  apt_get update || say "apt-get update had trouble with $suite"
}

# The mirror from which this system installs CODENAME, whichever way its sources are written.
debian_mirror() {
  local mirror
  mirror=$(apt_suites | awk -v suite="$1" '$1 == suite { print $2; exit }')
  echo "${mirror:-http://deb.debian.org/debian/}"
}

# Lines of `suite mirror` and of `codename mirror`, as apt understands this system's sources.
apt_suites() {
  apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages'
  apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages'
}
