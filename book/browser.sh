# To be read by scripts that make pictures: `$browser` is a Chromium, or the one that BROWSER names, and
# `pictures PAGE NAME HEIGHT` takes one of the page in light and one in dark, 1200 pixels wide.
# Needs `$work`, a folder for what the browser keeps, and pngquant.

browser=
for name in ${BROWSER:-} chromium chromium-browser google-chrome; do
  if "$name" --version >/dev/null 2>&1; then browser=$name; break; fi
done
if [ -z "$browser" ]; then
  echo "there is no browser here: install chromium, or name one with BROWSER=..." >&2
  exit 1
fi
if ! pngquant --version >/dev/null 2>&1; then
  echo "there is no pngquant here, which makes the pictures small: install it" >&2
  exit 1
fi

images=book/src/images
mkdir -p "$images"

# Of 128 colours: a fourth of the bytes, and no eye sees it.
pictures() {
  for scheme in light:1 dark:0; do
    picture=$images/$2-${scheme%:*}.png
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run \
      --disable-background-networking --user-data-dir="$work/browser" \
      --blink-settings=preferredColorScheme="${scheme#*:}" --window-size="1200,$3" \
      --screenshot="$picture" "file://$1" >/dev/null 2>&1
    pngquant --force --nofs --ext .png 128 "$picture"
    echo "$picture: $(wc -c <"$picture") bytes"
  done
}
