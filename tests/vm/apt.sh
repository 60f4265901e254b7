# shellcheck shell=bash disable=SC2034,SC2154 # For kernel.sh and scripts/arm64.sh, which have `suite`, `cache` and `cannot`, and use `options`.
# Packages of a Debian suite, without installing them: `apt_options`, then `apt-get "${options[@]}" download PACKAGE...`.

# The mirror that this machine's own apt uses.
mirror() {
    # shellcheck disable=SC2016 # apt expands it.
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 2>/dev/null |
        awk '$3 == "main" && $2 ~ /^(bookworm|trixie|forky|sid|stable|testing|unstable)$/ { print $1; exit }'
}

# apt with lists, state and sources of its own, so that nothing of the host's is read or changed. Arguments are further options.
apt_options() {
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg uri
    uri=$(mirror)
    [ -n "$uri" ] || cannot "apt knows no Debian mirror"
    [ -e "$keys" ] || cannot "$keys is missing (package debian-archive-keyring)"
    mkdir -p "$cache"/{debs,apt/lists/partial,apt/cache/archives/partial}
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$uri" "$suite" "$keys" \
        >"$cache/apt/suite.sources"
    options=(
        -o Dir::State="$cache/apt" -o Dir::State::Lists="$cache/apt/lists" -o Dir::State::status=/dev/null
        -o Dir::Cache="$cache/apt/cache" -o Dir::Etc::SourceList="$cache/apt/suite.sources" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o APT::Sandbox::User=root
        -o APT::Get::List-Cleanup=false -o Acquire::Languages=none -o Acquire::Retries=2 "$@"
    )
}
