(function () {
  'use strict';
  function lead(chart, detail) {
    chart.setAttribute('role', 'application');
    var nothing = detail.textContent, chosen = null, shown = null, marked = [], same = {}, rows = [], byHeight = {};
    function title(bar) { return bar.querySelector('title').textContent; }
    function name(bar) { return title(bar).split(':')[0]; }
    function middle(bar) {
      var rect = bar.querySelector('rect');
      return rect.x.baseVal.value + rect.width.baseVal.value / 2;
    }
    // Bars are in the document row by row, each row by time.
    Array.prototype.forEach.call(chart.querySelectorAll('svg g'), function (bar) {
      var y = bar.querySelector('rect').getAttribute('y');
      if (!byHeight[y]) { byHeight[y] = []; rows.push(byHeight[y]); }
      bar.place = [rows.length - 1, byHeight[y].push(bar) - 1];
      (same[name(bar)] = same[name(bar)] || []).push(bar);
    });
    // Above the neighbouring bars, and around the bar: inside, it would fill a narrow one.
    var frames = [];
    function frame() {
      frames.forEach(function (old) { old.remove(); });
      frames = marked.map(function (bar) {
        var rect = bar.querySelector('rect'), own = document.createElementNS(rect.namespaceURI, 'rect');
        [['x', -1.5], ['y', -1.5], ['width', 3], ['height', 3]].forEach(function (side) {
          own.setAttribute(side[0], Number(rect.getAttribute(side[0])) + side[1]);
        });
        own.setAttribute('class', bar === shown ? 'frame' : 'frame twin');
        return bar.parentNode.insertBefore(own, bar.parentNode.querySelector('.side'));
      });
    }
    chart.addEventListener('zoomed', frame);
    // An action is described in words and marked in both timelines.
    function show(bar) {
      if (bar === shown) { return; }
      shown = bar;
      marked.forEach(function (old) { old.classList.remove('on', 'twin'); });
      marked = bar ? same[name(bar)] : [];
      marked.forEach(function (each) { each.classList.add(each === bar ? 'on' : 'twin'); });
      detail.textContent = bar ? title(bar) : nothing;
      frame();
    }
    function choose(row, place) {
      chosen = rows[row][place];
      show(chosen);
      if (chosen.scrollIntoView) { chosen.scrollIntoView({ block: 'nearest', inline: 'nearest' }); }
    }
    function nearest(row, x) {
      var best = 0;
      rows[row].forEach(function (bar, place) {
        if (Math.abs(middle(bar) - x) < Math.abs(middle(rows[row][best]) - x)) { best = place; }
      });
      return best;
    }
    function go(key) {
      if (!chosen) { choose(0, 0); return; }
      var row = chosen.place[0], place = chosen.place[1], last = rows[row].length - 1;
      if (key === 'ArrowRight') { choose(row, Math.min(place + 1, last)); }
      if (key === 'ArrowLeft') { choose(row, Math.max(place - 1, 0)); }
      if (key === 'Home') { choose(row, 0); }
      if (key === 'End') { choose(row, last); }
      var other = row + (key === 'ArrowDown') - (key === 'ArrowUp');
      if (other !== row && rows[other]) { choose(other, nearest(other, middle(chosen))); }
    }
    chart.addEventListener('keydown', function (event) {
      var ours = ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End'];
      if (event.key === 'Escape') { chosen = null; show(null); }
      if (event.ctrlKey || event.altKey || event.metaKey || ours.indexOf(event.key) < 0) { return; }
      if (rows.length) { go(event.key); }
      event.preventDefault();
    });
    chart.addEventListener('mousemove', function (event) {
      show(event.target.closest('g') || chosen);
    });
    chart.addEventListener('mouseleave', function () { show(chosen); });
  }
  Array.prototype.forEach.call(document.querySelectorAll('.chart'), function (chart) {
    var detail = chart.nextElementSibling;
    if (detail && detail.tagName === 'OUTPUT') { lead(chart, detail); }
  });
  document.documentElement.dataset.ready = 'yes';
})();
