// Writes findings about the laid-out page to attributes of the body.
(function () {
  'use strict';
  function channel(c) { c /= 255; return c <= 0.04045 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4); }
  // The formula of WCAG 2.2.
  function light(css) {
    var v = css.match(/[\d.]+/g).map(Number);
    return 0.2126 * channel(v[0]) + 0.7152 * channel(v[1]) + 0.0722 * channel(v[2]);
  }
  function clear(css) { var v = css.match(/[\d.]+/g); return css === 'none' || (v.length > 3 && Number(v[3]) === 0); }
  function ratio(a, b) { return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }
  function ground(element) {
    for (var at = element; at; at = at.parentElement) {
      var color = getComputedStyle(at).backgroundColor;
      if (!clear(color)) { return color; }
    }
    return 'rgb(255, 255, 255)';
  }
  function behind(text) {
    // A label on a bar has an outline in the bar's colour.
    if (text.closest('g')) { return getComputedStyle(text).stroke; }
    return getComputedStyle(text.closest('.tl').querySelector('.ground')).fill;
  }
  var poor = [], texts = 0;
  Array.prototype.forEach.call(document.querySelectorAll('body *'), function (element) {
    var own = Array.prototype.some.call(element.childNodes, function (node) {
      return node.nodeType === 3 && node.textContent.trim();
    });
    if (!own || element.closest('script,style,title,desc')) { return; }
    var svg = element.tagName.toLowerCase() === 'text', style = getComputedStyle(element);
    var front = svg ? style.fill : style.color, back = svg ? behind(element) : ground(element);
    texts += 1;
    if (ratio(light(front), light(back)) < 4.5) { poor.push(element.textContent.slice(0, 30) + ' ' + front + ' on ' + back); }
  });
  var nameless = Array.prototype.filter.call(document.querySelectorAll('[tabindex="0"]'), function (element) {
    return !element.getAttribute('aria-label');
  });
  var result = {
    dark: light(ground(document.body)) < 0.2,
    texts: texts,
    poor: poor.slice(0, 5),
    wider: Math.max(0, document.documentElement.scrollWidth - innerWidth),
    width: innerWidth,
    nameless: nameless.length,
    loaded: performance.getEntriesByType('resource').length
  };
  (window.parent || window).document.body.dataset.audit = JSON.stringify(result);
})();
