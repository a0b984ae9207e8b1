# SPDX-FileCopyrightText: The zckpt authors
# SPDX-License-Identifier: Apache-2.0

# Common to all scripts here; sourced, never run. Afterwards the working folder is the repository.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

build_packages=(g++ cmake ninja-build pkg-config libcli11-dev nlohmann-json3-dev libxxhash-dev
  libpcre2-dev crc-library)
test_packages=(libgtest-dev libgmock-dev)
lint_packages=(clang-format-14 clang-tidy-14)
clang_packages=(clang-14 libomp-14-dev)
python_packages=(python3 python3-venv)

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Is what this package brings there already? Programs may have come another way than from a package.
has() {
  local p
  case $1 in
    g++ | cmake | pkg-config | python3 | doxygen | clang-format-14 | clang-tidy-14) command -v "$1" ;;
    clang-14) command -v clang++-14 ;;
    ninja-build) command -v ninja ;;
    python3-venv) python3 -c 'import ensurepip' ;;
    # CRC-32 comes from ISA-L, or from libdeflate where a distribution lacks that.
    crc-library) for p in libisal-dev libdeflate-dev; do has "$p" && return; done; return 1 ;;
    *) [[ $(dpkg-query -W -f='${Status}' "$1") == *' installed' ]] ;;
  esac >/dev/null 2>&1
}

# need PACKAGE...: installs those that are missing, or says what to ask for.
need() {
  command -v apt-get >/dev/null || { echo "no apt-get here: taking it that these are installed: $*" >&2; return 0; }
  local p missing=() sudo=()
  for p in "$@"; do has "$p" || missing+=("$p"); done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ $(id -u) != 0 ]]; then
    # A password can be asked for only where somebody sits at a terminal.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 && -t 2 ]]; }; then
      sudo=(sudo)
    else
      die "these packages are missing, and installing them needs root. Ask for:
  apt-get install ${missing[*]/crc-library/libisal-dev (or, where there is none, libdeflate-dev)}"
    fi
  fi
  say "installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq || echo 'apt-get update failed: trying with the lists at hand' >&2
  for p in "${!missing[@]}"; do
    [[ ${missing[p]} != crc-library ]] || missing[p]=$(crc_package)
  done
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null \
    || die "apt-get could not install: ${missing[*]}"
}

crc_package() {
  if apt-cache show libisal-dev >/dev/null 2>&1; then echo libisal-dev; else echo libdeflate-dev; fi
}

# configure PRESET [CMAKE OPTION...]
configure() {
  local preset=$1
  shift
  if command -v ccache >/dev/null; then set -- -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"; fi
  cmake --preset "$preset" "$@"
}

# Builds build/release/zckpt and nothing else.
build_program() {
  need "${build_packages[@]}"
  configure release -DZCKPT_BUILD_TESTS=OFF
  cmake --build --preset release --target zckpt
}
