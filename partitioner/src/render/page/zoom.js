(function () {
  'use strict';
  var chart = document.getElementById('chart'), svg = chart && chart.querySelector('svg');
  var end = svg && Number(svg.dataset.end);
  if (!end) { return; }
  // As `canvas.rs` has them.
  var LEFT = 70, RIGHT = 10, WIDE = 1200, LARGE = 6.8, SMALL = 5.5;
  var tall = svg.viewBox.baseVal.height, zoom = 1, most = 64;
  var space = svg.namespaceURI, chunked = svg.querySelector('g.c0') !== null;
  function all(what) { return Array.prototype.slice.call(svg.querySelectorAll(what)); }
  var bars = all('g').map(function (bar) {
    var rect = bar.querySelector('rect'), full = bar.querySelector('title').textContent.split(':')[0];
    var names = chunked || bar.classList.contains('A') ? [full] : [full, full.replace(/^\d+/, '')];
    var wide = names[0].indexOf('W') < 0 ? 0 : 0.5;
    return { bar: bar, rect: rect, names: names, wide: wide, more: 0, x: rect.x.baseVal.value, width: rect.width.baseVal.value };
  });
  function digits(item) { return (item.names[0].match(/\d*$/) || [''])[0].length; }
  var longest = bars.reduce(function (most, item) { return Math.max(most, digits(item)); }, 0);
  bars.forEach(function (item) { item.more = longest - digits(item); });
  var lanes = all('.lane'), axis = svg.querySelector('.axis'), side = svg.querySelector('.side');
  var level = Number(axis.querySelector('path').getAttribute('d').split(/[ v]/)[1]);
  var ends = all('.end').map(function (line) {
    return { line: line, x: parseFloat(line.getAttribute('d').slice(1)) };
  });
  // Names of devices also cover what is scrolled into the chart's padding.
  all('.side .ground').forEach(function (ground) {
    ground.setAttribute('x', -12);
    ground.setAttribute('width', ground.width.baseVal.value + 12);
  });
  function place(x) { return LEFT + (x - LEFT) * zoom; }
  function width() { return place(WIDE - RIGHT) + RIGHT; }
  function fitting(item, room) {
    var names = item.names, sizes = [[LARGE, ''], [SMALL, 's']];
    for (var size = 0; size < 2; size += 1) {
      for (var name = 0; name < names.length; name += 1) {
        if ((names[name].length + item.more + (size ? 0 : item.wide)) * sizes[size][0] + 2 < room) { return [names[name], sizes[size][1]]; }
      }
    }
    return null;
  }
  function draw(item) {
    var x = place(item.x), wide = item.width * zoom, label = fitting(item, wide);
    item.rect.setAttribute('x', x);
    item.rect.setAttribute('width', wide);
    var text = item.bar.querySelector('text');
    if (!label) { if (text) { text.remove(); } return; }
    if (!text) {
      text = item.bar.appendChild(document.createElementNS(space, 'text'));
      text.setAttribute('y', Number(item.rect.getAttribute('y')) + 16);
    }
    text.textContent = label[0];
    text.setAttribute('class', label[1]);
    text.setAttribute('x', x + wide / 2);
  }
  // Round times, as `ticks.rs` has them for the whole.
  function ticks() {
    var unit = end < 1e3 ? [1, '\u00b5s'] : end < 1e6 ? [1e3, 'ms'] : [1e6, 's'];
    var part = end / unit[0] / 8 / zoom * (1 - 1e-12), power = Math.floor(Math.log10(part)), base = Math.pow(10, power);
    var round = [1, 2, 5, 10].filter(function (round) { return round * base >= part; })[0], step = round * base;
    var digits = Math.max(0, round === 10 ? -power - 1 : -power);
    var html = '', last = Math.floor(end / unit[0] / step * (1 + 1e-12));
    for (var number = 0; number <= last; number += 1) {
      var x = place(LEFT + number * step * unit[0] / end * (WIDE - LEFT - RIGHT)).toFixed(2);
      var label = number ? (number * step).toFixed(digits) + ' ' + unit[1] : '0';
      var anchor = Number(x) + LARGE * label.length / 2 <= width() ? 'middle' : 'end';
      html += '<path class="tick" d="M' + x + ' ' + level + 'v5"/><text x="' + x + '" y="' + (level + 17) +
        '" text-anchor="' + anchor + '">' + label + '</text>';
    }
    axis.innerHTML = html;
  }
  function pixels() { return svg.getBoundingClientRect().width / width(); }
  function keepNames() { if (side) { side.setAttribute('x', chart.scrollLeft / pixels()); } }
  function left() { return svg.getBoundingClientRect().left; }
  // What is at `at`, pixels from the window's left edge, stays there.
  function set(next, at) {
    next = Math.min(Math.max(next, 1), most);
    var held = (at - left()) / pixels(), before = zoom;
    if (next === before) { return; }
    zoom = next;
    svg.setAttribute('viewBox', '0 0 ' + width() + ' ' + tall);
    svg.style.setProperty('--zoom', width() / WIDE);
    bars.forEach(draw);
    lanes.forEach(function (lane) { lane.setAttribute('width', width() - LEFT - RIGHT); });
    ends.forEach(function (own) { own.line.setAttribute('transform', 'translate(' + (place(own.x) - own.x) + ' 0)'); });
    ticks();
    chart.scrollLeft += left() + (LEFT + (held - LEFT) / before * zoom) * pixels() - at;
    chart.classList.toggle('zoomed', zoom > 1);
    chart.dataset.zoom = zoom;
    keepNames();
  }
  function middle(factor) {
    var box = chart.getBoundingClientRect();
    set(zoom * factor, (box.left + box.right) / 2);
  }
  var steps = { '+': 2, '=': 2, '-': 0.5, '0': 0 };
  Array.prototype.forEach.call(document.querySelectorAll('.zoom button'), function (button) {
    button.addEventListener('click', function () { middle(steps[button.dataset.step]); });
  });
  chart.addEventListener('keydown', function (event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in steps)) { return; }
    middle(steps[event.key]);
    event.preventDefault();
  });
  chart.addEventListener('wheel', function (event) {
    if (!event.ctrlKey) { return; }
    set(zoom * Math.exp(-event.deltaY / 200), event.clientX);
    event.preventDefault();
  }, { passive: false });
  var grip = null;
  chart.addEventListener('pointerdown', function (event) {
    if (event.pointerType === 'mouse' && event.button === 0) { grip = event.clientX + chart.scrollLeft; }
  });
  window.addEventListener('pointermove', function (event) {
    if (grip !== null) { chart.scrollLeft = grip - event.clientX; }
  });
  window.addEventListener('pointerup', function () { grip = null; });
  chart.addEventListener('scroll', keepNames);
  keepNames();
})();
